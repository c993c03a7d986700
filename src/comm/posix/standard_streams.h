#pragma once
/// \file
/// Standard streams that the process was started without.

#include <fcntl.h>
#include <unistd.h>

namespace fsdp {

/// Opens /dev/null on those of the descriptors 0 to 2 that are closed, as after `2>&-`: the next socket or file would
/// get the number of a standard stream, and what the program prints would go there. Call it before anything is opened.
inline void open_standard_streams() {
  int file = -1;
  do {  // a new descriptor has the lowest number that is free
    file = open("/dev/null", O_RDWR);
  } while (file >= 0 && file <= STDERR_FILENO);
  if (file >= 0) close(file);
}

}  // namespace fsdp
