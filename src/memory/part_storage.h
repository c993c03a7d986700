#pragma once
/// \file
/// Storage that is kept for ever while its memory comes and goes.

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "memory/flat_buffer.h"

namespace fsdp::memory {

/// The StorageImpl of one parameter's rows, whole or gradient: a part of a flat buffer.
///
/// Views that autograd saved alias it, so freeing and refilling goes unseen by them. It has exactly the part's bytes,
/// so saving a tensor writes no more than the tensor. Thread safety: the caller serialises.
class PartStorage {
 public:
  /// Starts without memory. `bytes` is its size from the start, so that views can be taken of it.
  PartStorage(c10::Device device, size_t bytes);

  /// Puts the storage into `buffer`, also one on another device, for as long as it has that memory.
  void attach(const std::shared_ptr<FlatBuffer>& buffer, size_t byte_offset);
  /// Takes the memory away; raw access now throws `error` instead of crashing.
  void detach(const std::string& error);

  c10::StorageImpl* impl() const { return storage_.unsafeGetStorageImpl(); }
  /// A tensor on the storage, with or without memory.
  at::Tensor tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype) const;

 private:
  const c10::Device device_;  // while it has no memory
  c10::Storage storage_;
};

/// `numel` elements of `buffer` as a flat tensor.
at::Tensor flat_tensor(const std::shared_ptr<FlatBuffer>& buffer, size_t byte_offset, int64_t numel,
                       c10::ScalarType dtype);

/// Frees the memory of a storage for good; whoever still has it gets `error` instead of values.
void end_storage(const c10::Storage& storage, const std::string& error);

}  // namespace fsdp::memory
