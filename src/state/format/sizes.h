#pragma once
/// \file
/// Arithmetic of sizes that come from a file: none of it overflows silently.

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "state/format/dtype.h"

namespace fsdp::state {

/// Of a tensor of these sizes; nothing if a size is negative or the bytes do not fit into 63 bits.
inline std::optional<uint64_t> bytes_of(Dtype dtype, std::span<const int64_t> sizes) {
  bool is_empty = false;
  auto bytes = static_cast<int64_t>(bytes_of(dtype));
  for (const auto size : sizes) {
    if (size < 0) return std::nullopt;
    if (size == 0) is_empty = true;
    // Sizes beside a 0 count as well: other readers multiply in their order.
    if (__builtin_mul_overflow(bytes, size == 0 ? 1 : size, &bytes)) return std::nullopt;
  }
  return is_empty ? 0 : static_cast<uint64_t>(bytes);
}

/// "[3, 4]"
inline std::string text_of(std::span<const int64_t> sizes) {
  std::string text = "[";
  for (const auto size : sizes) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

}  // namespace fsdp::state
