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

/// Returns the signal's name, such as "SIGKILL".
std::string signal_name(int number);

/// Whether and how a process failed: not at all, with an exit code other than 0 (kOwn), or by a signal. If several
/// processes fail at once, the one with the highest value is taken to be the cause.
enum class Failure : uint8_t { kNone, kOwn, kSignal };

/// A process's exit status.
class ExitStatus {
 public:
  /// Returns the exit status for `status`, which waitpid returned for a process that has ended.
  static ExitStatus from_wait(int status);

  bool is_failure() const { return failure() != Failure::kNone; }
  Failure failure() const {
    if (is_signal()) return Failure::kSignal;
    return code_ == 0 ? Failure::kNone : Failure::kOwn;
  }
  bool is_signal() const { return signal_ != 0; }
  /// Returns the exit code, or 0 if a signal ended the process.
  int code() const { return code_; }
  /// Returns the number of the signal that ended the process, or 0 if none did.
  int signal() const { return signal_; }
  /// Returns the exit code that a shell reports: 128 + the signal's number if a signal ended the process.
  int shell_code() const { return is_signal() ? 128 + signal_ : code_; }
  /// Returns a description such as "exited with code 3" or "was killed by SIGSEGV".
  std::string describe() const;

 private:
  int code_ = 0;
  int signal_ = 0;
};

/// While a WaitedChildren exists, the kernel keeps the exit statuses of ended children until this process waits for
/// them. Otherwise the kernel would discard them if this process ignored SIGCHLD, a setting that processes inherit.
class WaitedChildren {
 public:
  WaitedChildren();
  ~WaitedChildren() { sigaction(SIGCHLD, &previous_, nullptr); }
  WaitedChildren(const WaitedChildren&) = delete;
  WaitedChildren& operator=(const WaitedChildren&) = delete;

 private:
  struct sigaction previous_{};
};

/// A child process. The destructor kills it and waits for it. Used by one thread.
class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)), status_(other.status_) {}
  Child& operator=(Child&&) = delete;
  ~Child();

  /// Returns true if the child has ended. Does not wait.
  bool has_ended();
  /// Returns the exit status. It is unset until `has_ended` has returned true.
  const std::optional<ExitStatus>& status() const { return status_; }
  bool is_running() const { return pid_ > 0 && !status_; }
  void send(int signal) const {
    if (is_running()) kill(pid_, signal);
  }

 private:
  pid_t pid_;
  std::optional<ExitStatus> status_;
};

/// Forks this process and returns the child's process id. The child runs `body`, which must not throw. The value that
/// `body` returns is the child's exit code; static destructors do not run. The kernel kills the child when the calling
/// thread ends. Throws std::system_error if the process cannot be forked.
pid_t fork_process(const std::function<int()>& body);
inline Child fork_child(const std::function<int()>& body) { return Child(fork_process(body)); }

}  // namespace fsdp
