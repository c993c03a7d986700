#pragma once
/// \file
/// Amounts of memory in messages.

#include <cstdint>
#include <iomanip>
#include <string>

#include "comm/core/text.h"

namespace fsdp {

/// "3.21 MB", from 10 MB on "32 MB"; a megabyte is 10^6 bytes.
inline std::string megabytes(int64_t bytes) {
  TextWriter text;
  text << std::fixed << std::setprecision(bytes < 10'000'000 ? 2 : 0) << static_cast<double>(bytes) / 1e6 << " MB";
  return text.str();
}

}  // namespace fsdp
