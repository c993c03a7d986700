#include "comm/posix/file_room.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>

namespace fsdp {

bool is_beyond_file_limit(uint64_t bytes) {
  rlimit limit{};
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes;
}

int set_file_size(int file, size_t bytes, bool now) {
  if (is_beyond_file_limit(bytes)) return EFBIG;
  const auto size = static_cast<off_t>(bytes);
  int error = EINTR;  // a signal, or SIGSTOP and SIGCONT, must not end it
  while (error == EINTR) error = now ? posix_fallocate(file, 0, size) : ftruncate(file, size) == 0 ? 0 : errno;
  return error;
}

}  // namespace fsdp
