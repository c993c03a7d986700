#pragma once
/// \file
/// A child process that nobody hears of and that never outlives its parent.

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <functional>

namespace fsdp::test {

/// Runs `body` in a fork of this process, which then ends with status 0. Its stderr goes nowhere: c10d writes backtraces
/// of every broken connection.
inline pid_t start_quiet_child(const std::function<void()>& body) {
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (const int silence = open("/dev/null", O_WRONLY); silence >= 0) dup2(silence, STDERR_FILENO);
  if (getppid() != parent) _exit(1);
  body();
  _exit(0);
}

}  // namespace fsdp::test
