#pragma once
/// \file
/// Function that starts ranks from inside a program.

#include <chrono>
#include <functional>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup ranks
/// \{

/// Options of spawn.
struct SpawnOptions {
  /// Time after the failure of a rank in which the other ranks can find the lost rank (fsdp::PeerLost), report it and
  /// clean up. The default is the longest time that ranks need for this.
  std::chrono::milliseconds peer_grace = std::chrono::seconds(15);
  /// True if spawn passes the first SIGTERM or SIGINT that this process gets on to the ranks, with a line on stderr,
  /// instead of ending this process; ranks can then save and return. After a second signal spawn kills the ranks, and
  /// then the signal has its usual effect on this process. Signals that are ignored stay ignored. Both signals are
  /// blocked in the calling thread until spawn returns.
  bool passes_signals_on = false;
};

/// Starts `nprocs` processes that run `fn(rank)` for the ranks 0 to nprocs - 1, with RANK, WORLD_SIZE, LOCAL_RANK,
/// MASTER_ADDR and MASTER_PORT set, and waits until they end. Not collective: one process calls this function.
///
/// The processes are forks, so call this function before this process starts threads, i.e. before the first parallel
/// LibTorch operator. Throws UsageError if this process has started threads, and if `nprocs` is less than 1. The
/// processes run no static destructors, and are killed if this process is killed. Unless OMP_NUM_THREADS is set, they
/// share the processors evenly.
///
/// If a rank fails, the other ranks have `options.peer_grace` to end, then get SIGTERM and, 5 seconds later, SIGKILL.
/// spawn throws the error of the rank that failed first as an fsdp::Error that names the rank. A rank fails if it
/// throws, is killed by a signal, exits with a status other than 0, or cannot write its output.
///
///     fsdp::spawn([](int) { fsdp::init_process_group(); train(); }, 2);
void spawn(const std::function<void(int rank)>& fn, int nprocs, SpawnOptions options = {});

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
