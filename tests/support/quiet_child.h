#pragma once
/// \file
/// A child process without output that never outlives its parent.

#include <fcntl.h>
#include <unistd.h>

#include <functional>

#include "launch/child.h"

namespace fsdp::test {

/// Runs `body` in a fork of this process; the fork then exits with status 0. Its stderr is discarded, because c10d
/// prints a backtrace for every broken connection.
inline Child start_quiet_child(const std::function<void()>& body) {
  return fork_child([&] {
    if (const int silence = open("/dev/null", O_WRONLY); silence >= 0) dup2(silence, STDERR_FILENO);
    body();
    return 0;
  });
}

}  // namespace fsdp::test
