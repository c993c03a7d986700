#pragma once
/// \file
/// Amounts of memory as text.

#include <cstdint>
#include <string>

namespace frame {

/// "3.21 MB", or from 10 MB on "32.1 MB". A megabyte is 10^6 bytes.
std::string bytes_text(int64_t bytes);

}  // namespace frame
