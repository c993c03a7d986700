#pragma once
/// \file
/// A stretch of a flat buffer.

#include <memory>

#include "memory/flat_buffer.h"
#include "memory/form.h"
#include "memory/part_storage.h"

namespace fsdp::memory {

/// Elements that lie one behind the other in `buffer`, which is null while they have no memory.
struct FlatPart {
  Form form;
  int64_t numel = 0;
  std::shared_ptr<FlatBuffer> buffer = nullptr;
  size_t byte_offset = 0;

  size_t bytes() const { return form.bytes(numel); }
  at::Tensor tensor() const { return flat_tensor(buffer, byte_offset, numel, form.dtype); }
};

}  // namespace fsdp::memory
