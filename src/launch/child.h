#pragma once
/// \file
/// A process that this one started, and how it ended.

#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

namespace fsdp {

/// "SIGKILL".
std::string signal_name(int number);

/// In rising order: of failures that are seen together, the highest is the cause of the others.
enum class Failure : uint8_t { kNone, kOwn, kSignal };

/// How a process ended, as waitpid tells it.
class ExitStatus {
 public:
  static ExitStatus from_wait(int status);

  bool is_failure() const { return failure() != Failure::kNone; }
  Failure failure() const {
    if (is_signal()) return Failure::kSignal;
    return code_ == 0 ? Failure::kNone : Failure::kOwn;
  }
  bool is_signal() const { return signal_ != 0; }
  /// 0 if a signal ended it.
  int code() const { return code_; }
  /// 0 if none did.
  int signal() const { return signal_; }
  /// As a shell reports it: 128 + number for a signal.
  int shell_code() const { return is_signal() ? 128 + signal_ : code_; }
  /// "exited with code 3", "was killed by SIGSEGV".
  std::string describe() const;

 private:
  int code_ = 0;
  int signal_ = 0;
};

/// While it lives, children that end stay until they are waited for. A process that ignores SIGCHLD, which it may have
/// inherited, would never learn how they ended.
class WaitedChildren {
 public:
  WaitedChildren();
  ~WaitedChildren() { sigaction(SIGCHLD, &previous_, nullptr); }
  WaitedChildren(const WaitedChildren&) = delete;
  WaitedChildren& operator=(const WaitedChildren&) = delete;

 private:
  struct sigaction previous_{};
};

/// Killed and waited for when it goes out of scope. Thread safety: one thread.
class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)), status_(other.status_) {}
  Child& operator=(Child&&) = delete;
  ~Child();

  /// Looks whether it has ended, without waiting.
  bool has_ended();
  /// Unset until `has_ended` saw the end.
  const std::optional<ExitStatus>& status() const { return status_; }
  bool is_running() const { return pid_ > 0 && !status_; }
  void send(int signal) const {
    if (is_running()) kill(pid_, signal);
  }

 private:
  pid_t pid_;
  std::optional<ExitStatus> status_;
};

/// Forks this process. The child runs `body`, which does not throw, and ends with its result as exit code, without
/// running static destructors; it dies with the calling thread. Throws std::system_error.
pid_t fork_process(const std::function<int()>& body);
inline Child fork_child(const std::function<int()>& body) { return Child(fork_process(body)); }

}  // namespace fsdp
