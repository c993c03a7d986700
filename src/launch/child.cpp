#include "launch/child.h"

#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

namespace fsdp {

std::string signal_name(int number) {
  const char* name = sigabbrev_np(number);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(number);
}

ExitStatus ExitStatus::from_wait(int status) {
  ExitStatus result;
  if (WIFSIGNALED(status)) result.signal_ = WTERMSIG(status);
  if (WIFEXITED(status)) result.code_ = WEXITSTATUS(status);
  return result;
}

std::string ExitStatus::describe() const {
  return is_signal() ? "was killed by " + signal_name(signal_) : "exited with code " + std::to_string(code_);
}

WaitedChildren::WaitedChildren() {
  sigaction(SIGCHLD, nullptr, &previous_);
  struct sigaction waited = previous_;
  if (waited.sa_handler == SIG_IGN) waited.sa_handler = SIG_DFL;
  waited.sa_flags &= ~SA_NOCLDWAIT;
  sigaction(SIGCHLD, &waited, nullptr);
}

Child::~Child() {
  if (!is_running()) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

bool Child::has_ended() {
  int status = 0;
  if (is_running() && waitpid(pid_, &status, WNOHANG) == pid_) status_ = ExitStatus::from_wait(status);
  return !is_running();
}

pid_t fork_process(const std::function<int()>& body) {
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw std::system_error(errno, std::generic_category(), "cannot start a process");
  if (pid > 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(EXIT_FAILURE);
  _exit(body());
}

}  // namespace fsdp
