#include "rank_process.h"

#include <fcntl.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "exit.h"

namespace fsdprun {
namespace {

struct Pipe {
  fsdp::Descriptor reading, writing;
};

Pipe make_pipe() {
  std::array<int, 2> ends;
  if (pipe2(ends.data(), O_CLOEXEC) != 0) throw Exit(kFailure, std::string("no pipe can be made: ") + strerror(errno));
  fcntl(ends[0], F_SETFL, fcntl(ends[0], F_GETFL) | O_NONBLOCK);
  return {fsdp::Descriptor(ends[0]), fsdp::Descriptor(ends[1])};
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
                            .blocked = &signals.previous()});
  } catch (const fsdp::CannotExecute& error) {
    const bool needs_first_line = error.code() == std::errc::executable_format_error;
    throw Exit(kNotExecutable,
               error.what() + std::string(needs_first_line ? ": a script needs a first line such as #!/bin/sh" : ""));
  }
}

}  // namespace fsdprun
