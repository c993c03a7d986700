#pragma once
/// \file
/// Where a tensor lies in memory.

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

namespace fsdp::memory {

/// The bytes from a tensor's first element to its last one, with the gaps between them.
struct MemoryRange {
  const char *begin = nullptr, *end = nullptr;

  bool overlaps(const MemoryRange& other) const { return begin < other.end && other.begin < end; }
};

/// Of a strided tensor; an empty range if it has no memory.
inline MemoryRange range_of(const at::Tensor& tensor) {
  const auto* begin = static_cast<const char*>(tensor.const_data_ptr());
  if (begin == nullptr) return {};
  return {begin, begin + at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size())};
}

}  // namespace fsdp::memory
