#pragma once
/// \file
/// One block of memory that several tensors are parts of.

#include <ATen/core/Tensor.h>

#include <memory>

#include "memory/byte_account.h"
#include "memory/stream_uses.h"

namespace fsdp::memory {

/// A block whose bytes are on an account while it lives. Parts hold a reference, so it is freed with the last of them.
class FlatBuffer {
 public:
  FlatBuffer(c10::DataPtr data, size_t bytes, std::shared_ptr<ByteAccount> account, ByteClass cls)
      : bytes_in_file_(cls == ByteClass::kDisk ? bytes : 0),
        charge_(std::move(account), cls, static_cast<int64_t>(bytes)),
        data_(std::move(data)),
        uses_(data_.device()) {}

  void* data() const { return data_.get(); }
  c10::Device device() const { return data_.device(); }
  StreamUses& uses() { return uses_; }
  /// Of memory in a file: it is used soon, or not for a while.
  void read_ahead() const noexcept;
  void mark_cold() const noexcept;

 private:
  size_t bytes_in_file_;
  Charge charge_;
  c10::DataPtr data_;
  StreamUses uses_;  // goes first
};

/// A pointer into `buffer` that holds a reference to it.
c10::DataPtr part_of(const std::shared_ptr<FlatBuffer>& buffer, size_t byte_offset);
/// The buffer that a tensor's memory is a part of; null if it is memory of another kind.
std::shared_ptr<FlatBuffer> buffer_of(const at::Tensor& tensor);
/// The calling thread's current stream uses the tensor's memory; noted where that is a part of a buffer.
void note_use(const at::Tensor& tensor);

}  // namespace fsdp::memory
