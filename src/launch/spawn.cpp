#include <ATen/Parallel.h>
#include <fcntl.h>
#include <fsdp/error.h>
#include <fsdp/process_group.h>
#include <fsdp/spawn.h>

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "comm/core/check.h"
#include "comm/core/store_message.h"
#include "comm/failure/verdict.h"
#include "comm/posix/descriptor.h"
#include "comm/posix/signals.h"
#include "launch/child.h"
#include "launch/end_requests.h"
#include "launch/ending.h"
#include "launch/variables.h"

namespace fsdp {
namespace {

// Exit status of a rank whose function threw. The rank writes the error to the pipe to its parent.
constexpr int kStatusThrew = 1;
constexpr int kPollMilliseconds = 20;
// Time between SIGTERM and SIGKILL for ranks that do not end after a failure.
constexpr std::chrono::seconds kShutdownTime{5};
static_assert(SpawnOptions{}.peer_grace >= kLongestDiagnosis);

void check_can_fork(int nprocs) {
  if (nprocs < 1) {
    throw UsageError("fsdp::spawn: nprocs is " + std::to_string(nprocs) + ", expected at least 1.");
  }
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  const auto threads = std::distance(begin(tasks), end(tasks));
  if (threads > 1) {
    throw UsageError("fsdp::spawn: this process has " + std::to_string(threads) +
                     " threads, and a fork copies only one of them. Call spawn before the first "
                     "operation that starts threads (a parallel LibTorch operator, "
                     "init_process_group), or start the program with fsdprun.");
  }
}

void take_place(const RankPlace& place) {
  set_variables(variables_of(place));
  if (place.world_size == 1 || std::getenv("OMP_NUM_THREADS") != nullptr) return;
  // OpenMP has read OMP_NUM_THREADS already, so setting the variable would have no effect.
  at::set_num_threads(std::max(1, count_processors() / place.world_size));
}

/// Runs a rank's function and returns the exit status. If the function throws, writes the error to the descriptor
/// `errors`.
int run_rank(int rank, const std::function<void()>& body, int errors) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    write_all(errors, what_without_backtrace(error));
    if (const auto* lost = dynamic_cast<const PeerLost*>(&error)) blame(rank, lost->rank());
  } catch (...) {
    write_all(errors, "it threw an exception that is not a std::exception");
  }
  return kStatusThrew;
}

/// One forked rank.
class RankProcess {
 public:
  RankProcess(int rank, Child child, Descriptor errors)
      : rank_(rank), child_(std::move(child)), errors_(std::move(errors)) {}

  bool is_running() const { return child_.is_running(); }
  void send(int signal) const { child_.send(signal); }
  int error_pipe() const { return errors_.number(); }

  /// Reads what is available of the exit status and the error text, without waiting.
  void collect() {
    child_.has_ended();
    while (has_errors_to_read()) read_errors();
  }

  Failure failure_kind() const { return is_running() ? Failure::kNone : child_.status()->failure(); }

  std::string failure() const {
    const std::string who = "fsdp::spawn: rank " + std::to_string(rank_);
    const bool has_said_why = !child_.status()->is_signal() && !message_.empty();
    return has_said_why ? who + " failed: " + message_ : who + " " + child_.status()->describe() + ".";
  }

 private:
  bool has_errors_to_read() const {
    pollfd pipe{errors_.number(), POLLIN, 0};
    return errors_.is_open() && poll(&pipe, 1, 0) > 0;
  }

  void read_errors() {
    std::array<char, 4096> buffer;
    const ssize_t count = read(errors_.number(), buffer.data(), buffer.size());
    if (count > 0) message_.append(buffer.data(), static_cast<size_t>(count));
    if (count == 0) errors_.close();
  }

  int rank_;
  Child child_;
  Descriptor errors_;
  std::string message_;
};

/// While a HeldSignals exists, SIGTERM and SIGINT are blocked in this thread, the only one of the process. Signals that
/// the process ignores stay ignored.
class HeldSignals {
 public:
  HeldSignals() {
    sigemptyset(&held_);
    for (const int signal : {SIGTERM, SIGINT})
      if (!is_ignored(signal)) sigaddset(&held_, signal);
    sigprocmask(SIG_BLOCK, &held_, &previous_);
  }
  ~HeldSignals() { release(); }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  /// Restores the previous signal mask. A rank calls this function after the fork.
  void release() const { sigprocmask(SIG_SETMASK, &previous_, nullptr); }
  /// Returns the next pending signal, or nothing if there is none. Does not wait.
  std::optional<int> next() const {
    const timespec at_once{};
    const int number = sigtimedwait(&held_, nullptr, &at_once);
    return number > 0 ? std::optional(number) : std::nullopt;
  }

 private:
  sigset_t held_{}, previous_{};
};

/// Writes the buffered output of a rank, because _exit does not write it. Throws Error if some output cannot be
/// written.
void flush_output() {
  errno = 0;
  const bool is_kept = static_cast<bool>(std::cout.flush());
  if (fflush(stdout) == 0 && ferror(stdout) == 0 && is_kept) return;
  const int error = errno;
  throw Error("the output of the rank cannot be written" +
              (error != 0 ? std::string(": ") + strerror(error) : std::string()));
}

RankProcess fork_rank(const std::function<void(int)>& fn, const RankPlace& place) {
  std::array<int, 2> ends;
  if (pipe2(ends.data(), O_CLOEXEC) != 0)
    throw Error(std::string("fsdp::spawn: cannot create a pipe: ") + strerror(errno) +
                ". Raise the limit on open files (ulimit -n).");
  Descriptor reading(ends[0]);
  const Descriptor writing(ends[1]);
  Child child = fork_child([&] {
    reading.close();
    const auto body = [&] {
      take_place(place);
      fn(place.rank);
      flush_output();
    };
    const int status = run_rank(place.rank, body, writing.number());
    destroy_process_group();  // tells the other ranks that this one has ended, which _exit does not
    std::cout.flush();
    std::clog.flush();
    fflush(nullptr);
    return status;
  });
  return RankProcess(place.rank, std::move(child), std::move(reading));
}

void wait_for_news(const std::vector<RankProcess>& ranks) {
  std::vector<pollfd> pipes;
  for (const RankProcess& rank : ranks) {
    if (rank.error_pipe() >= 0) pipes.push_back({rank.error_pipe(), POLLIN, 0});
  }
  poll(pipes.data(), pipes.size(), kPollMilliseconds);
}

/// Handles the signals that this process receives. See Note [Two requests to end] in end_requests.h.
class Requests {
 public:
  Requests(Ending& ending, std::function<void(int signal)> send) : ending_(ending), send_(std::move(send)) {}

  void take(int signal) {
    const auto now = Ending::Clock::now();
    if (!first_at_) {
      first_at_ = now;
      send_(signal);
      const PipeSignalBlocked blocked;  // Ctrl-C may have ended the process that reads stderr, such as "tee"
      std::cerr << "[fsdp] " << signal_name(signal)
                << " was passed on to the ranks, which can now save and stop; a second signal ends them" << std::endl;
    } else if (is_second_request(now - *first_at_)) {
      ended_by_ = signal;
      ending_.kill();
    }
  }
  /// Returns the signal that was the second request, or nothing if there was none.
  std::optional<int> ended_by() const { return ended_by_; }

 private:
  Ending& ending_;
  const std::function<void(int signal)> send_;
  std::optional<Ending::Clock::time_point> first_at_;
  std::optional<int> ended_by_;
};

/// Result of wait_for_all.
struct Outcome {
  /// Rank that caused the failure; null if all ranks succeeded.
  const RankProcess* cause = nullptr;
  /// Signal that was the second request to end; unset if there was none.
  std::optional<int> ended_by = std::nullopt;
};

/// Waits for all ranks. After a failure, the other ranks have the time `peer_grace` to end by themselves. Those that
/// still run get SIGTERM and, kShutdownTime later, SIGKILL. If `signals` is set, its signals are passed on to the
/// ranks. A rank that throws PeerLost writes to `blame_board` which rank it lost.
Outcome wait_for_all(std::vector<RankProcess>& ranks, std::chrono::milliseconds peer_grace,
                     const std::optional<HeldSignals>& signals, const Descriptor& blame_board) {
  const auto send = [&](int signal) {
    for (const RankProcess& rank : ranks) rank.send(signal);
  };
  Ending ending({peer_grace, kShutdownTime}, send);
  Requests requests(ending, send);
  std::optional<int> first;
  std::set<int> failed;  // ranks that failed before they were asked to end
  while (std::ranges::any_of(ranks, &RankProcess::is_running) && ending.phase() < Ending::Phase::kKilled) {
    wait_for_news(ranks);
    while (const auto signal = signals ? signals->next() : std::nullopt) requests.take(*signal);
    for (RankProcess& rank : ranks) rank.collect();
    const auto worst = std::ranges::max_element(ranks, {}, &RankProcess::failure_kind);
    if (worst->failure_kind() == Failure::kNone) continue;
    if (!first) first = static_cast<int>(worst - ranks.begin());
    if (ending.phase() <= Ending::Phase::kPeersMayEnd)
      for (size_t rank = 0; rank < ranks.size(); ++rank)
        if (ranks[rank].failure_kind() != Failure::kNone) failed.insert(static_cast<int>(rank));
    ending.note_failure();
    ending.advance();
  }
  if (!first) return {nullptr, requests.ended_by()};
  const int cause = find_first_failed(
      *first, [&](int rank) { return blamed_by(blame_board, rank); }, [&](int rank) { return failed.contains(rank); });
  return {&ranks[static_cast<size_t>(cause)], requests.ended_by()};
}

}  // namespace

void spawn(const std::function<void(int rank)>& fn, int nprocs, SpawnOptions options) {
  check_can_fork(nprocs);
  open_standard_streams();
  const WaitedChildren waited;
  const HeldPort port;
  RankPlace place{.world_size = nprocs,
                  .local_world_size = nprocs,
                  .port = port.number(),
                  .counts_signals = options.passes_signals_on};
  std::cout.flush();
  std::clog.flush();
  fflush(nullptr);  // without this, every rank would also print the output that is buffered here

  std::optional<HeldSignals> signals;
  if (options.passes_signals_on) signals.emplace();
  const auto blame_board = make_blame_board();
  const auto run = [&](int rank) {
    if (signals) signals->release();
    if (blame_board.is_open()) setenv(kBlameVariable, std::to_string(blame_board.number()).c_str(), /*overwrite=*/1);
    fn(rank);
  };
  std::vector<RankProcess> ranks;
  ranks.reserve(static_cast<size_t>(nprocs));
  for (int rank = 0; rank < nprocs; ++rank) {
    place.rank = place.local_rank = rank;
    ranks.push_back(fork_rank(run, place));
  }
  const auto [cause, ended_by] = wait_for_all(ranks, options.peer_grace, signals, blame_board);
  if (ended_by) {
    ranks.clear();
    signals.reset();
    ::raise(*ended_by);  // ends this process too, unless it has a handler for the signal
    throw Error("fsdp::spawn: the ranks were killed, because a second signal (" + signal_name(*ended_by) +
                ") asked them to end.");
  }
  if (cause) throw Error(cause->failure());
}

}  // namespace fsdp
