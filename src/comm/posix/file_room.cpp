#include "comm/posix/file_room.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "comm/posix/pipe_signal.h"

namespace fsdp {
namespace {

// A signal ends the system's call, which on some file systems leaves nothing of it. So the room is taken in pieces, and
// these become smaller until one is done between two signals of a timer, and larger again.
int take_room(int file, off_t size) {
  constexpr off_t kSmallest = 4096, kLargest = off_t{64} << 20;
  off_t piece = kLargest;
  for (off_t done = 0; done < size;) {
    const off_t bytes = std::min(piece, size - done);
    const int error = posix_fallocate(file, done, bytes);
    if (error != 0 && error != EINTR) return error;
    if (error == 0) done += bytes;
    piece = error == 0 ? std::min(2 * piece, kLargest) : std::max(piece / 2, kSmallest);
  }
  return 0;
}

int make_long(int file, off_t size) {
  while (ftruncate(file, size) != 0)
    if (errno != EINTR) return errno;
  return 0;
}

}  // namespace

int set_file_size(int file, size_t bytes, bool now) {
  const FileLimitSignalBlocked no_signal;
  return now ? take_room(file, static_cast<off_t>(bytes)) : make_long(file, static_cast<off_t>(bytes));
}

}  // namespace fsdp
