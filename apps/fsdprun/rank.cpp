#include "rank.h"

#include <signal.h>
#include <sys/wait.h>

#include "exit.h"
#include "signals.h"

namespace fsdprun {

ExitStatus ExitStatus::from_wait(int status) {
  ExitStatus result;
  if (WIFSIGNALED(status)) result.signal_ = WTERMSIG(status);
  if (WIFEXITED(status)) result.code_ = WEXITSTATUS(status);
  return result;
}

int ExitStatus::shell_code() const { return is_signal() ? kSignalBase + signal_ : code_; }

std::string ExitStatus::describe() const {
  if (is_signal()) return "was killed by " + signal_name(signal_);
  return "exited with code " + std::to_string(code_);
}

void Rank::send(int signal) const {
  if (is_running()) kill(-pid, signal);
}

std::vector<std::string> Rank::last_error_lines() const {
  if (streams.empty()) return {};
  return streams.back().last_lines();
}

}  // namespace fsdprun
