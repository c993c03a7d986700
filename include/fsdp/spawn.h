#pragma once
/// \file
/// Ranks started from inside a program.

#include <chrono>
#include <functional>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup ranks
/// \{

/// How a process that has started ranks treats them.
struct SpawnOptions {
  /// How long the other ranks have after a failure to find out who was lost (fsdp::PeerLost), to say so and to clean
  /// up. The default is as long as that takes them at most.
  std::chrono::milliseconds peer_grace = std::chrono::seconds(15);
  /// The first SIGTERM or SIGINT to this process goes on to the ranks instead of ending it, e.g. so that these save
  /// what they have and return; a line on stderr says so. The second one kills the ranks, and then does here what it
  /// did before. Signals that are ignored stay ignored. They are blocked in the calling thread until spawn returns.
  bool passes_signals_on = false;
};

/// Starts `nprocs` processes that each run `fn(rank)`, rank from 0 to nprocs - 1, with RANK, WORLD_SIZE,
/// LOCAL_RANK, MASTER_ADDR and MASTER_PORT set, and waits for them. Not collective: one process calls it.
///
/// The processes are forks, so call it before this process has started threads (before its first
/// parallel LibTorch operator); UsageError otherwise, or if `nprocs` is less than 1. They end
/// without running static destructors, and with this process if it is killed. Unless
/// OMP_NUM_THREADS is set, they share the processors evenly.
///
/// The first rank that fails ends the others: they have `options.peer_grace` to end by themselves, then get SIGTERM,
/// and soon SIGKILL. Its error is rethrown here as fsdp::Error naming the rank. A rank fails by an exception, by a
/// signal, by leaving through exit() with another status than 0, or if what it printed cannot be written.
///
///     fsdp::spawn([](int) { fsdp::init_process_group(); train(); }, 2);
void spawn(const std::function<void(int rank)>& fn, int nprocs, SpawnOptions options = {});

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
