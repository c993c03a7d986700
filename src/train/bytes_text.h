#pragma once
/// \file
/// Amounts of memory, for people.

#include <cstdint>
#include <string>

namespace fsdp::train {

/// "3.21 MB", from 10 MB on "32.1 MB"; a megabyte is 10^6 bytes.
std::string bytes_text(int64_t bytes);

}  // namespace fsdp::train
