#pragma once
/// \file
/// The size of a file and the room that it takes.

#include <cstddef>

namespace fsdp {

/// Makes the file so long, and takes the room for it now if `now`, else as it is written. Returns 0 or an errno, EFBIG
/// beyond the limit on the size of files (ulimit -f).
int set_file_size(int file, size_t bytes, bool now);

}  // namespace fsdp
