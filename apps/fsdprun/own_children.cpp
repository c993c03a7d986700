#include "own_children.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "launch/child.h"
#include "signals.h"

namespace fsdprun {
namespace {

bool may_have_foreign_children() {
  siginfo_t info{};
  const bool has_none = waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 && errno == ECHILD;
  return !has_none || getpid() == 1;
}

int pass_signals_on_until_it_ends(pid_t launcher) {
  SignalQueue signals;
  for (;;) {
    int status = 0;
    for (pid_t ended; (ended = waitpid(-1, &status, WNOHANG)) > 0;) {
      if (ended == launcher) return fsdp::ExitStatus::from_wait(status).shell_code();
    }
    pollfd file{signals.descriptor(), POLLIN, 0};
    poll(&file, 1, -1);
    while (const auto signal = signals.next()) {
      if (*signal != SIGCHLD) kill(launcher, *signal);
    }
  }
}

}  // namespace

int with_own_children_only(const std::function<int()>& act) {
  if (!may_have_foreign_children()) return act();
  const pid_t launcher = fsdp::fork_process([&act] {
    setpgid(0, 0);  // Ctrl-C reaches the fork only once, through its parent.
    const int status = act();
    fflush(nullptr);
    return status;
  });
  return pass_signals_on_until_it_ends(launcher);
}

}  // namespace fsdprun
