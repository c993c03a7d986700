#pragma once
/// \file
/// Arithmetic with sizes that come from files. It detects overflows.

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "state/format/dtype.h"

namespace fsdp::state {

/// Returns the number of bytes of a tensor, or nullopt if a size is negative or the number does not fit into 63 bits.
inline std::optional<uint64_t> bytes_of(Dtype dtype, std::span<const int64_t> sizes) {
  bool is_empty = false;
  auto bytes = static_cast<int64_t>(bytes_of(dtype));
  for (const auto size : sizes) {
    if (size < 0) return std::nullopt;
    if (size == 0) is_empty = true;
    // The other sizes must not overflow even if one size is 0, because other readers may multiply them first.
    if (__builtin_mul_overflow(bytes, size == 0 ? 1 : size, &bytes)) return std::nullopt;
  }
  return is_empty ? 0 : static_cast<uint64_t>(bytes);
}

/// Returns text such as "[3, 4]".
inline std::string text_of(std::span<const int64_t> sizes) {
  std::string text = "[";
  for (const auto size : sizes) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

}  // namespace fsdp::state
