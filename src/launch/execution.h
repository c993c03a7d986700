#pragma once
/// \file
/// Execution of programs in child processes.

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <system_error>
#include <vector>

namespace fsdp {

/// A program with arguments and environment. It is prepared before the fork, because the child must not allocate
/// memory.
class Execution {
 public:
  /// `arguments` begins with the program's name. `environment` has entries "NAME=value".
  Execution(const std::string& program, const std::vector<std::string>& arguments,
            std::vector<std::string> environment);
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;

  struct Options {
    /// File descriptors for its standard input, output and error; -1: inherited.
    int in = -1, out = -1, err = -1;
    /// Whether the child leads a new process group.
    bool leads_group = false;
    /// The child's blocked signals, and whether it ignores SIGPIPE; null: both are inherited.
    const sigset_t* blocked = nullptr;
    bool ignores_broken_pipes = false;
  };
  /// Starts the program in a child that the kernel kills when the calling thread ends. Throws CannotExecute or
  /// std::system_error.
  pid_t start(const Options& options) const;
  const std::string& program() const { return program_; }

 private:
  int become(const Options& options, int failure) const;

  std::string program_;
  std::vector<std::string> arguments_, environment_;
  std::vector<char*> argument_pointers_, environment_pointers_;
};

/// The child process was created, but could not execute the program.
struct CannotExecute : std::system_error {
  using std::system_error::system_error;
};

}  // namespace fsdp
