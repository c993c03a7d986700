#pragma once
/// \file
/// The size of a file and the room that it takes.

#include <cstddef>
#include <cstdint>

namespace fsdp {

/// Whether a file of so many bytes is beyond the limit on the size of files (ulimit -f), where the system would end the
/// process by SIGXFSZ.
bool is_beyond_file_limit(uint64_t bytes);

/// Makes the file so long, and takes the room for it now if `now`, else as it is written. Returns 0 or an errno, EFBIG
/// where is_beyond_file_limit.
int set_file_size(int file, size_t bytes, bool now);

}  // namespace fsdp
