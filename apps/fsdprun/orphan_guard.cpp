#include "orphan_guard.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <set>
#include <string>

#include "exit.h"

namespace fsdprun {
namespace {

void leave_the_terminal(int pipe) {
  setsid();  // Ctrl-C and signals to the launcher's group must not end it.
  prctl(PR_SET_NAME, "fsdprun-guard");
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) signal(number, SIG_IGN);
  // A program that reads the launcher's output must not wait for this process to close it.
  const int nothing = open("/dev/null", O_RDWR);
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nothing, standard);
  dup2(pipe, STDERR_FILENO + 1);
  close_range(STDERR_FILENO + 2, ~0U, 0);
}

/// Reads process groups from the pipe until the launcher is gone, then kills them. A negative number removes a group
/// that has ended.
[[noreturn]] void watch(int pipe) {
  leave_the_terminal(pipe);
  std::set<pid_t> groups;
  for (;;) {
    pid_t group = 0;
    const ssize_t count = ::read(STDERR_FILENO + 1, &group, sizeof(group));
    if (count < 0 && errno == EINTR) continue;
    if (count != sizeof(group)) break;
    if (group > 0) {
      groups.insert(group);
    } else {
      groups.erase(-group);
    }
  }
  for (const pid_t group : groups) kill(-group, SIGKILL);
  _exit(0);
}

void send(const fsdp::Descriptor& pipe, pid_t group) {
  // The number is shorter than PIPE_BUF, so it is written as a whole or not at all.
  while (write(pipe.number(), &group, sizeof(group)) < 0 && errno == EINTR) {
  }
}

}  // namespace

OrphanGuard::OrphanGuard() {
  std::array<int, 2> ends;
  if (pipe2(ends.data(), O_CLOEXEC) != 0 || (pid_ = fork()) < 0) {
    throw Exit(kFailure, std::string("cannot start a process: ") + strerror(errno));
  }
  if (pid_ == 0) watch(ends[0]);
  close(ends[0]);
  pipe_ = fsdp::Descriptor(ends[1]);
}

OrphanGuard::~OrphanGuard() {
  pipe_.close();
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void OrphanGuard::add(pid_t group) const { send(pipe_, group); }
void OrphanGuard::remove(pid_t group) const { send(pipe_, -group); }

}  // namespace fsdprun
