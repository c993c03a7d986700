#include "rank_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "exit.h"

namespace fsdprun {
namespace {

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

struct Pipe {
  fsdp::Descriptor reading, writing;
};

Pipe make_pipe() {
  std::array<int, 2> ends;
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw Exit(kFailure, std::string("no pipe can be made: ") + strerror(errno));
  }
  return {fsdp::Descriptor(ends[0]), fsdp::Descriptor(ends[1])};
}

void set_nonblocking(const fsdp::Descriptor& pipe) {
  fcntl(pipe.number(), F_SETFL, fcntl(pipe.number(), F_GETFL) | O_NONBLOCK);
}

/// The child's side of the fork. Only async-signal-safe calls.
[[noreturn]] void become_rank(const Execution& execution, const StartOptions& options, const SignalQueue& signals,
                              pid_t launcher, const Pipe& out, const Pipe& err, const Pipe& failure) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(kFailure);
  if (!options.inherit_stdin) dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
  if (options.pipe_output) {
    dup2(out.writing.number(), STDOUT_FILENO);
    dup2(err.writing.number(), STDERR_FILENO);
  }
  signals.restore_in_child();
  execution.start();
  const int error = errno;
  [[maybe_unused]] const ssize_t told = write(failure.writing.number(), &error, sizeof(error));
  _exit(kNotExecutable);
}

}  // namespace

Execution::Execution(const std::string& program, const std::vector<std::string>& arguments,
                     std::vector<std::string> environment)
    : program_(program),
      arguments_(arguments),
      environment_(std::move(environment)),
      argument_pointers_(pointers_to(arguments_)),
      environment_pointers_(pointers_to(environment_)) {}

void Execution::start() const { execve(program_.c_str(), argument_pointers_.data(), environment_pointers_.data()); }

pid_t start_rank(const Execution& execution, const StartOptions& options, const SignalQueue& signals,
                 RankPipes& pipes) {
  Pipe out;
  Pipe err;
  if (options.pipe_output) {
    out = make_pipe();
    err = make_pipe();
  }
  Pipe failure = make_pipe();  // Closed by a successful exec.
  const pid_t launcher = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw Exit(kFailure, std::string("no process can be started: ") + strerror(errno));
  if (pid == 0) become_rank(execution, options, signals, launcher, out, err, failure);

  setpgid(pid, pid);  // The child does so too: whoever comes first.
  failure.writing.close();
  int error = 0;
  if (read(failure.reading.number(), &error, sizeof(error)) == sizeof(error)) {
    waitpid(pid, nullptr, 0);
    const std::string hint = error == ENOEXEC ? ": a script needs a first line such as #!/bin/sh" : "";
    throw Exit(kNotExecutable, std::string("the program cannot be executed: ") + strerror(error) + hint);
  }
  if (options.pipe_output) {
    set_nonblocking(out.reading);
    set_nonblocking(err.reading);
  }
  pipes.out = std::move(out.reading);
  pipes.err = std::move(err.reading);
  return pid;
}

}  // namespace fsdprun
