#pragma once
/// \file
/// Starting ranks from inside a program.

#include <chrono>
#include <functional>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup ranks
/// \{

/// Options of spawn.
struct SpawnOptions {
  /// Time that the other ranks get after a failure to find the lost rank (fsdp::PeerLost), report it and clean up. The
  /// default is the longest time that this takes.
  std::chrono::milliseconds peer_grace = std::chrono::seconds(15);
  /// Whether the first SIGTERM or SIGINT to this process is passed on to the ranks, with a line on stderr, instead of
  /// ending this process; ranks can then save and return. The second signal kills the ranks and then has its previous
  /// effect on this process. Ignored signals stay ignored. The signals are blocked in the calling thread until spawn
  /// returns.
  bool passes_signals_on = false;
};

/// Starts `nprocs` processes that run `fn(rank)` for the ranks 0 to nprocs - 1, with RANK, WORLD_SIZE, LOCAL_RANK,
/// MASTER_ADDR and MASTER_PORT set, and waits for them. Not collective: one process calls it.
///
/// The processes are forks, so call it before this process starts threads, i.e. before the first parallel LibTorch
/// operator. Throws UsageError otherwise, and if `nprocs` is less than 1. The processes run no static destructors, and
/// are killed if this process is killed. Unless OMP_NUM_THREADS is set, they share the processors evenly.
///
/// If a rank fails, the others have `options.peer_grace` to end, then get SIGTERM and, 5 seconds later, SIGKILL. The
/// error of the rank that failed first is rethrown as fsdp::Error naming the rank. A rank fails if it throws, is killed
/// by a signal, exits with a status other than 0, or cannot write its output.
///
///     fsdp::spawn([](int) { fsdp::init_process_group(); train(); }, 2);
void spawn(const std::function<void(int rank)>& fn, int nprocs, SpawnOptions options = {});

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
