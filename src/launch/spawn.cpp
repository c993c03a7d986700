#include <ATen/Parallel.h>
#include <fcntl.h>
#include <fsdp/error.h>
#include <fsdp/process_group.h>
#include <fsdp/spawn.h>

#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "comm/core/message_code.h"
#include "comm/failure/diagnosis.h"
#include "comm/posix/descriptor.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;

// Exit statuses of a rank whose function threw: its error is in the pipe.
constexpr int kStatusThrew = 1;
// As kStatusThrew, but the rank only reports that a peer is gone: that peer's own failure says more.
constexpr int kStatusLostPeer = 2;
constexpr int kPollMilliseconds = 20;
// From SIGTERM to SIGKILL.
constexpr std::chrono::seconds kShutdownTime{5};
static_assert(SpawnOptions{}.peer_grace >= kLongestDiagnosis);

[[noreturn]] void throw_system_error(const char* what) {
  throw Error(std::string("fsdp::spawn: ") + what + ": " + strerror(errno));
}

/// Asks the system for a port that nobody uses now. Somebody else may take it before rank 0 does.
int free_port() {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (socket.number() < 0 || bind(socket.number(), generic, size) != 0 ||
      getsockname(socket.number(), generic, &size) != 0) {
    throw_system_error("no free port was found");
  }
  return ntohs(address.sin_port);
}

void check_can_fork(int nprocs) {
  if (nprocs < 1) {
    throw UsageError("fsdp::spawn: nprocs is " + std::to_string(nprocs) + ", expected at least 1.");
  }
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  const auto threads = std::distance(begin(tasks), end(tasks));
  if (threads > 1) {
    throw UsageError("fsdp::spawn: this process has " + std::to_string(threads) +
                     " threads, and a fork copies only one of them: call spawn before the first "
                     "operation that starts threads (a parallel LibTorch operator, "
                     "init_process_group), or start the program with fsdprun.");
  }
}

int processors() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

void set_rank_environment(int rank, int nprocs, int port, const std::string& token) {
  const auto set = [](const char* name, const std::string& value) { setenv(name, value.c_str(), /*overwrite=*/1); };
  set("RANK", std::to_string(rank));
  set("LOCAL_RANK", std::to_string(rank));
  set("WORLD_SIZE", std::to_string(nprocs));
  set("LOCAL_WORLD_SIZE", std::to_string(nprocs));
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(port));
  set("FSDP_JOB_TOKEN", token);
  // Left by a launcher of this process, these describe another store.
  unsetenv("TORCHELASTIC_USE_AGENT_STORE");
  unsetenv("TORCHELASTIC_RESTART_COUNT");
  if (nprocs > 1 && std::getenv("OMP_NUM_THREADS") == nullptr) {
    // OpenMP has read its variable by now.
    at::set_num_threads(std::max(1, processors() / nprocs));
  }
}

void write_all(int file, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t count = write(file, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;
    done += static_cast<size_t>(count);
  }
}

/// Runs a rank. Returns its exit status; writes its error to `errors`.
int run_rank(const std::function<void()>& body, int errors) {
  try {
    body();
    return 0;
  } catch (const PeerLost& error) {
    write_all(errors, error.what_without_backtrace());
    return kStatusLostPeer;
  } catch (const c10::Error& error) {
    write_all(errors, error.what_without_backtrace());
  } catch (const std::exception& error) {
    write_all(errors, error.what());
  } catch (...) {
    write_all(errors, "an exception that is not a std::exception");
  }
  return kStatusThrew;
}

/// In rising order: of failures that are seen together, the highest is the cause of the others.
enum class Failure { kNone, kLostPeer, kOwn, kSignal };

/// One forked rank. Killed and waited for when it goes out of scope.
class RankProcess {
 public:
  RankProcess(int rank, pid_t pid, Descriptor errors) : rank_(rank), pid_(pid), errors_(std::move(errors)) {}
  RankProcess(RankProcess&& other) noexcept
      : rank_(other.rank_),
        pid_(std::exchange(other.pid_, -1)),
        status_(other.status_),
        errors_(std::move(other.errors_)),
        message_(std::move(other.message_)) {}
  RankProcess& operator=(RankProcess&&) = delete;
  ~RankProcess() {
    if (!is_running()) return;
    kill(pid_, SIGKILL);
    while (waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {
    }
  }

  bool is_running() const { return pid_ > 0; }
  void ask_to_end() const {
    if (is_running()) kill(pid_, SIGTERM);
  }
  int error_pipe() const { return errors_.number(); }

  /// Takes what there is to take, without waiting: parts of the error, then the exit status.
  void collect() {
    const bool ended = is_running() && waitpid(pid_, &status_, WNOHANG) == pid_;
    while (has_errors_to_read()) read_errors();
    if (ended) pid_ = -1;
  }

  Failure failure_kind() const {
    if (is_running() || (WIFEXITED(status_) && WEXITSTATUS(status_) == 0)) return Failure::kNone;
    if (WIFSIGNALED(status_)) return Failure::kSignal;
    return WEXITSTATUS(status_) == kStatusLostPeer ? Failure::kLostPeer : Failure::kOwn;
  }

  std::string failure() const {
    const std::string who = "fsdp::spawn: rank " + std::to_string(rank_);
    if (WIFSIGNALED(status_)) {
      const char* name = sigabbrev_np(WTERMSIG(status_));
      return who + " was killed by signal " + (name ? std::string("SIG") + name : std::to_string(WTERMSIG(status_))) +
             ".";
    }
    if (message_.empty()) {
      return who + " exited with status " + std::to_string(WEXITSTATUS(status_)) + ".";
    }
    return who + " failed: " + message_;
  }

 private:
  bool has_errors_to_read() const {
    pollfd pipe{errors_.number(), POLLIN, 0};
    return errors_.number() >= 0 && poll(&pipe, 1, 0) > 0;
  }

  void read_errors() {
    std::array<char, 4096> buffer;
    const ssize_t count = read(errors_.number(), buffer.data(), buffer.size());
    if (count > 0) message_.append(buffer.data(), static_cast<size_t>(count));
    if (count == 0) errors_.close();
  }

  int rank_;
  pid_t pid_;
  int status_ = 0;
  Descriptor errors_;
  std::string message_;
};

RankProcess fork_rank(const std::function<void(int)>& fn, int rank, int nprocs, int port, const std::string& token) {
  std::array<int, 2> ends;
  if (pipe2(ends.data(), O_CLOEXEC) != 0) throw_system_error("no pipe could be made");
  Descriptor reading(ends[0]);
  Descriptor writing(ends[1]);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw_system_error("no process could be started");
  if (pid > 0) return RankProcess(rank, pid, std::move(reading));

  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kStatusThrew);
  reading.close();
  const auto body = [&] {
    set_rank_environment(rank, nprocs, port, token);
    fn(rank);
  };
  const int status = run_rank(body, writing.number());
  destroy_process_group();  // _exit() runs nothing that says goodbye to the others
  std::cout.flush();
  std::clog.flush();
  fflush(nullptr);
  _exit(status);
}

void wait_for_news(const std::vector<RankProcess>& ranks) {
  std::vector<pollfd> pipes;
  for (const RankProcess& rank : ranks) {
    if (rank.error_pipe() >= 0) pipes.push_back({rank.error_pipe(), POLLIN, 0});
  }
  poll(pipes.data(), pipes.size(), kPollMilliseconds);
}

/// Waits for all ranks, of which some may fail: the others have `peer_grace` to end by themselves, then kShutdownTime
/// after SIGTERM. Returns the rank that is to blame, null if all succeeded.
const RankProcess* wait_for_all(std::vector<RankProcess>& ranks, std::chrono::milliseconds peer_grace) {
  enum class Phase { kRunning, kPeersMayEnd, kAskedToEnd } phase = Phase::kRunning;
  Clock::time_point deadline = Clock::time_point::max();
  const RankProcess* cause = nullptr;
  while (std::ranges::any_of(ranks, &RankProcess::is_running)) {
    wait_for_news(ranks);
    for (RankProcess& rank : ranks) rank.collect();
    const auto worst = std::ranges::max_element(ranks, {}, &RankProcess::failure_kind);
    if (worst->failure_kind() == Failure::kNone) continue;
    // What ranks say later may follow from the first failure, or from SIGTERM. Only the loss of a peer says less than
    // what that peer says itself: its connections close while its exception still travels.
    if (cause == nullptr || (cause->failure_kind() == Failure::kLostPeer && phase == Phase::kPeersMayEnd))
      cause = &*worst;
    if (phase == Phase::kRunning) {
      phase = Phase::kPeersMayEnd;
      deadline = Clock::now() + peer_grace;
    } else if (Clock::now() > deadline && phase == Phase::kPeersMayEnd) {
      phase = Phase::kAskedToEnd;
      deadline = Clock::now() + kShutdownTime;
      for (const RankProcess& rank : ranks) rank.ask_to_end();
    } else if (Clock::now() > deadline) {
      break;
    }
  }
  return cause;
}

}  // namespace

void spawn(const std::function<void(int rank)>& fn, int nprocs, SpawnOptions options) {
  check_can_fork(nprocs);
  const int port = free_port();
  std::cout.flush();
  std::clog.flush();
  fflush(nullptr);  // Else every rank prints what is still buffered here.

  const std::string token = random_token();
  std::vector<RankProcess> ranks;
  ranks.reserve(static_cast<size_t>(nprocs));
  for (int rank = 0; rank < nprocs; ++rank) ranks.push_back(fork_rank(fn, rank, nprocs, port, token));
  if (const RankProcess* cause = wait_for_all(ranks, options.peer_grace)) throw Error(cause->failure());
}

}  // namespace fsdp
