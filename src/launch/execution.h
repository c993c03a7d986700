#pragma once
/// \file
/// Starting a program.

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <system_error>
#include <vector>

namespace fsdp {

/// What to execute; made before the fork, after which no memory may be allocated.
class Execution {
 public:
  /// `arguments`: the program's name first. `environment`: "NAME=value".
  Execution(const std::string& program, const std::vector<std::string>& arguments,
            std::vector<std::string> environment);
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;

  struct Options {
    /// Descriptors of its standard input, output and error; -1: this process's.
    int in = -1, out = -1, err = -1;
    /// In a process group of its own.
    bool leads_group = false;
    /// The signals that are blocked in it, and whether it ignores SIGPIPE; null: as here.
    const sigset_t* blocked = nullptr;
    bool ignores_broken_pipes = false;
  };
  /// Starts it in a process that dies with the calling thread. Throws CannotExecute, or std::system_error.
  pid_t start(const Options& options) const;
  const std::string& program() const { return program_; }

 private:
  int become(const Options& options, int failure) const;

  std::string program_;
  std::vector<std::string> arguments_, environment_;
  std::vector<char*> argument_pointers_, environment_pointers_;
};

/// The process was there, but the program could not be executed.
struct CannotExecute : std::system_error {
  using std::system_error::system_error;
};

}  // namespace fsdp
