#include "launch/execution.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>

#include "comm/posix/descriptor.h"
#include "launch/child.h"

namespace fsdp {
namespace {

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

Execution::Execution(const std::string& program, const std::vector<std::string>& arguments,
                     std::vector<std::string> environment)
    : program_(program),
      arguments_(arguments),
      environment_(std::move(environment)),
      argument_pointers_(pointers_to(arguments_)),
      environment_pointers_(pointers_to(environment_)) {}

/// Executes the program in the child, after the fork. Returns only if exec fails, and then writes errno to the
/// descriptor `failure`. Calls only async-signal-safe functions.
int Execution::become(const Options& options, int failure) const {
  if (options.leads_group) setpgid(0, 0);
  if (options.in >= 0) dup2(options.in, STDIN_FILENO);
  if (options.out >= 0) dup2(options.out, STDOUT_FILENO);
  if (options.err >= 0) dup2(options.err, STDERR_FILENO);
  if (options.blocked != nullptr) {
    signal(SIGPIPE, options.ignores_broken_pipes ? SIG_IGN : SIG_DFL);
    sigprocmask(SIG_SETMASK, options.blocked, nullptr);
  }
  execve(program_.c_str(), argument_pointers_.data(), environment_pointers_.data());
  const int error = errno;
  [[maybe_unused]] const ssize_t told = write(failure, &error, sizeof(error));
  return EXIT_FAILURE;
}

pid_t Execution::start(const Options& options) const {
  std::array<int, 2> ends;  // a pipe for the errno of a failed exec; a successful exec closes the child's ends
  if (pipe2(ends.data(), O_CLOEXEC) != 0)
    throw std::system_error(errno, std::generic_category(), "cannot create a pipe");
  const Descriptor reading(ends[0]);
  Descriptor writing(ends[1]);
  const pid_t pid = fork_process([&] { return become(options, writing.number()); });
  if (options.leads_group) setpgid(pid, pid);  // parent and child both call it, because either may run first
  writing.close();
  int error = 0;
  if (read(reading.number(), &error, sizeof(error)) == sizeof(error)) {
    waitpid(pid, nullptr, 0);
    throw CannotExecute(error, std::generic_category(), "the program cannot be executed");
  }
  return pid;
}

}  // namespace fsdp
