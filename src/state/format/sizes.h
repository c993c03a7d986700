#pragma once
/// \file
/// Overflow-safe arithmetic for sizes that come from files.

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "state/format/dtype.h"

namespace fsdp::state {

/// Bytes of a tensor; nullopt if a size is negative or the bytes do not fit into 63 bits.
inline std::optional<uint64_t> bytes_of(Dtype dtype, std::span<const int64_t> sizes) {
  bool is_empty = false;
  auto bytes = static_cast<int64_t>(bytes_of(dtype));
  for (const auto size : sizes) {
    if (size < 0) return std::nullopt;
    if (size == 0) is_empty = true;
    // Other sizes count even beside a 0, because other readers multiply in their own order.
    if (__builtin_mul_overflow(bytes, size == 0 ? 1 : size, &bytes)) return std::nullopt;
  }
  return is_empty ? 0 : static_cast<uint64_t>(bytes);
}

/// Text such as "[3, 4]".
inline std::string text_of(std::span<const int64_t> sizes) {
  std::string text = "[";
  for (const auto size : sizes) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

}  // namespace fsdp::state
