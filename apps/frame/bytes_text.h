#pragma once
/// \file
/// Formats amounts of memory as text.

#include <cstdint>
#include <string>

namespace frame {

/// Returns text such as "3.21 MB", or "32.1 MB" from 10 MB on. A megabyte is 10^6 bytes.
std::string bytes_text(int64_t bytes);

}  // namespace frame
