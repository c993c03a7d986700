#pragma once
/// \file
/// write_all() writes whole buffers to files, pipes and devices.

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <span>
#include <string_view>

#include "comm/posix/pipe_signal.h"

namespace fsdp {

/// Writes all of it, however long that takes. Returns 0, or an errno: EPIPE and EFBIG too, where the system would end
/// the process. Some of it may have been written then.
inline int write_all(int file, std::span<const std::byte> bytes) {
  const PipeSignalBlocked no_pipe_signal;
  const FileLimitSignalBlocked no_limit_signal;
  while (!bytes.empty()) {
    const auto count = ::write(file, bytes.data(), bytes.size());
    if (count >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(count));
    } else if (errno == EAGAIN) {  // a terminal that another program made non-blocking
      pollfd waiting{file, POLLOUT, 0};
      poll(&waiting, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}
inline int write_all(int file, std::string_view text) { return write_all(file, std::as_bytes(std::span(text))); }

}  // namespace fsdp
