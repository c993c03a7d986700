#pragma once
/// \file
/// Child processes and the ways in which they end.

#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

namespace fsdp {

/// The signal's name, e.g. "SIGKILL".
std::string signal_name(int number);

/// In ascending order: if several processes fail at once, the one with the highest value caused the failures.
enum class Failure : uint8_t { kNone, kOwn, kSignal };

/// A process's exit status, as waitpid reports it.
class ExitStatus {
 public:
  static ExitStatus from_wait(int status);

  bool is_failure() const { return failure() != Failure::kNone; }
  Failure failure() const {
    if (is_signal()) return Failure::kSignal;
    return code_ == 0 ? Failure::kNone : Failure::kOwn;
  }
  bool is_signal() const { return signal_ != 0; }
  /// The exit code; 0 if a signal ended the process.
  int code() const { return code_; }
  /// The signal that ended the process; 0 if none did.
  int signal() const { return signal_; }
  /// The code that a shell reports: 128 + number for a signal.
  int shell_code() const { return is_signal() ? 128 + signal_ : code_; }
  /// A description such as "exited with code 3" or "was killed by SIGSEGV".
  std::string describe() const;

 private:
  int code_ = 0;
  int signal_ = 0;
};

/// While it lives, ended children remain until this process waits for them. Otherwise a process that ignores SIGCHLD,
/// perhaps because it inherited that, could not learn their exit statuses.
class WaitedChildren {
 public:
  WaitedChildren();
  ~WaitedChildren() { sigaction(SIGCHLD, &previous_, nullptr); }
  WaitedChildren(const WaitedChildren&) = delete;
  WaitedChildren& operator=(const WaitedChildren&) = delete;

 private:
  struct sigaction previous_{};
};

/// A child process, which the destructor kills and waits for. One thread.
class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)), status_(other.status_) {}
  Child& operator=(Child&&) = delete;
  ~Child();

  /// Checks whether the child has ended, without waiting.
  bool has_ended();
  /// Unset until `has_ended` has returned true.
  const std::optional<ExitStatus>& status() const { return status_; }
  bool is_running() const { return pid_ > 0 && !status_; }
  void send(int signal) const {
    if (is_running()) kill(pid_, signal);
  }

 private:
  pid_t pid_;
  std::optional<ExitStatus> status_;
};

/// Forks this process. The child runs `body`, which must not throw, and exits with its result as exit code, without
/// running static destructors. The kernel kills the child when the calling thread ends. Throws std::system_error.
pid_t fork_process(const std::function<int()>& body);
inline Child fork_child(const std::function<int()>& body) { return Child(fork_process(body)); }

}  // namespace fsdp
