#pragma once
/// \file
/// File descriptors: a class that owns one, functions that write all bytes to one, and a function that opens the
/// standard streams that a process was started without.

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

#include "comm/posix/signals.h"

namespace fsdp {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() { close(); }

  bool is_open() const { return number_ >= 0; }
  int number() const { return number_; }
  int release() { return std::exchange(number_, -1); }
  void close() {
    if (number_ >= 0) ::close(number_);
    number_ = -1;
  }

 private:
  int number_ = -1;
};

/// Writes all bytes, however long that takes. Returns 0 or an errno. EPIPE and EFBIG are returned too, because their
/// signals are blocked. After an error, some of the bytes may have been written.
inline int write_all(int file, std::span<const std::byte> bytes) {
  const PipeSignalBlocked no_pipe_signal;
  const FileLimitSignalBlocked no_limit_signal;
  while (!bytes.empty()) {
    const auto count = ::write(file, bytes.data(), bytes.size());
    if (count >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(count));
    } else if (errno == EAGAIN) {  // e.g. a terminal that another program made non-blocking
      pollfd waiting{file, POLLOUT, 0};
      poll(&waiting, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}
inline int write_all(int file, std::string_view text) { return write_all(file, std::as_bytes(std::span(text))); }

/// Opens /dev/null on those of the descriptors 0 to 2 that are closed, as after `2>&-`. Otherwise the next socket or
/// file would get the number of a standard stream and receive what the program prints. Call it before anything else is
/// opened.
inline void open_standard_streams() {
  int file = -1;
  do {  // open() returns the lowest number that is free
    file = open("/dev/null", O_RDWR);
  } while (file >= 0 && file <= STDERR_FILENO);
  if (file >= 0) close(file);
}

}  // namespace fsdp
