#include "rank_process.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <system_error>

#include "exit.h"

namespace fsdprun {
namespace {

struct Pipe {
  fsdp::Descriptor reading, writing;
};

Pipe make_pipe() {
  std::array<int, 2> ends;
  if (pipe2(ends.data(), O_CLOEXEC) != 0) throw Exit(kFailure, std::string("cannot create a pipe: ") + strerror(errno));
  fcntl(ends[0], F_SETFL, fcntl(ends[0], F_GETFL) | O_NONBLOCK);
  return {fsdp::Descriptor(ends[0]), fsdp::Descriptor(ends[1])};
}

/// Returns why the system could not execute a file that exists and is executable.
std::string explanation(const std::error_code& error, const std::string& program) {
  if (error == std::errc::executable_format_error) return ". A script needs a first line such as #!/bin/sh";
  std::string line;
  std::getline(std::ifstream(program), line);
  if (error != std::errc::no_such_file_or_directory || !line.starts_with("#!")) return "";
  const size_t begin = std::min(line.find_first_not_of(" \t", 2), line.size());
  std::string interpreter = line.substr(begin, line.find_first_of(" \t", begin) - begin);
  if (!interpreter.ends_with('\r')) return ". Its first line names the interpreter '" + interpreter + "': install it";
  interpreter.pop_back();
  return ". Its first line names the interpreter '" + interpreter +
         "' followed by a carriage return. Let its lines end with only a line feed: sed -i 's/\\r$//' " + program;
}

}  // namespace

pid_t start_rank(const fsdp::Execution& execution, const StartOptions& options, const SignalQueue& signals,
                 RankPipes& pipes) {
  Pipe out;
  Pipe err;
  if (options.pipe_output) {
    out = make_pipe();
    err = make_pipe();
  }
  const fsdp::Descriptor nothing(options.inherit_stdin ? -1 : open("/dev/null", O_RDONLY | O_CLOEXEC));
  pipes.out = std::move(out.reading);
  pipes.err = std::move(err.reading);
  try {
    return execution.start({.in = nothing.number(),
                            .out = out.writing.number(),
                            .err = err.writing.number(),
                            .leads_group = true,
                            .blocked = &signals.previous(),
                            .ignores_broken_pipes = signals.ignored_broken_pipes()});
  } catch (const fsdp::CannotExecute& error) {
    throw Exit(kNotExecutable, error.what() + explanation(error.code(), execution.program()));
  }
}

}  // namespace fsdprun
