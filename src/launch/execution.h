#pragma once
/// \file
/// Execution of programs in child processes.

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <system_error>
#include <vector>

namespace fsdp {

/// A program with its arguments and environment. The constructor prepares everything that exec needs, because the child
/// must not allocate memory after the fork.
class Execution {
 public:
  /// `arguments` begins with the program's name. `environment` has entries "NAME=value".
  Execution(const std::string& program, const std::vector<std::string>& arguments,
            std::vector<std::string> environment);
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;

  struct Options {
    /// File descriptors for the child's standard input, output and error. The child inherits a stream if its descriptor
    /// is -1.
    int in = -1, out = -1, err = -1;
    /// True if the child leads a new process group.
    bool leads_group = false;
    /// Signals that the child blocks. If null, the child inherits the signal mask and the handling of SIGPIPE.
    const sigset_t* blocked = nullptr;
    /// True if the child ignores SIGPIPE. Unused if `blocked` is null.
    bool ignores_broken_pipes = false;
  };
  /// Starts the program in a child process and returns its process id. The kernel kills the child when the calling
  /// thread ends. Throws CannotExecute if the program cannot be executed, and std::system_error if no child can be
  /// created.
  pid_t start(const Options& options) const;
  const std::string& program() const { return program_; }

 private:
  int become(const Options& options, int failure) const;

  std::string program_;
  std::vector<std::string> arguments_, environment_;
  std::vector<char*> argument_pointers_, environment_pointers_;
};

/// Thrown if the child process was created but could not execute the program.
struct CannotExecute : std::system_error {
  using std::system_error::system_error;
};

}  // namespace fsdp
