#pragma once
/// \file
/// Blocks of memory that several tensors are parts of, the streams of an accelerator that use them, and storage that is
/// kept for ever while its memory comes and goes.

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memory/byte_account.h"

namespace fsdp::memory {

/// What elements are, and where they are kept.
struct Form {
  c10::ScalarType dtype;
  c10::Device device;

  size_t bytes(int64_t numel) const { return static_cast<size_t>(numel) * c10::elementSize(dtype); }
  bool operator==(const Form&) const = default;
};

inline Form form_of(const at::Tensor& tensor) { return {tensor.scalar_type(), tensor.device()}; }

/// What the calling thread's current stream does with the tensor after `take` comes after all that the current stream
/// of `put` had been given by then, and its memory stays until both are done. On the CPU this is the tensor. Thread
/// safety: the caller serialises.
class HandedOn {
 public:
  bool defined() const { return tensor_.defined(); }
  void put(at::Tensor tensor);
  /// Undefined if there is none.
  at::Tensor take();

 private:
  at::Tensor tensor_;
  std::optional<c10::Stream> stream_;  // none on the CPU
};

/// A block whose bytes are on an account while it lives. Parts hold a reference, so it is freed with the last of them.
///
/// A caching allocator hands a block out again on the stream that it was taken on as soon as the host lets it go; so
/// that stream, the current one here, waits at the end for all others that use the block. Thread safety: the caller
/// serialises.
class FlatBuffer {
 public:
  FlatBuffer(c10::DataPtr data, size_t bytes, std::shared_ptr<ByteAccount> account, ByteClass cls);
  ~FlatBuffer();
  FlatBuffer(const FlatBuffer&) = delete;
  FlatBuffer& operator=(const FlatBuffer&) = delete;

  void* data() const { return data_.get(); }
  c10::Device device() const { return data_.device(); }
  /// The calling thread's current stream uses the block. Returns whether it is new here; false on the CPU.
  bool note_use();
  /// Of memory in a file: it is used soon, and is read ahead; or not for a while, and is what the system takes first.
  /// Only wishes.
  void read_ahead() const noexcept;
  void mark_cold() const noexcept;

 private:
  size_t bytes_in_file_;
  Charge charge_;
  c10::DataPtr data_;
  std::optional<c10::Stream> own_stream_;  // none on the CPU
  std::vector<c10::Stream> users_;
};

/// The buffer that a tensor's memory is a part of; null if it is memory of another kind.
std::shared_ptr<FlatBuffer> buffer_of(const at::Tensor& tensor);
/// The calling thread's current stream uses the tensor's memory; noted where that is a part of a buffer.
void note_use(const at::Tensor& tensor);

/// The StorageImpl of one parameter's rows, whole or gradient: a part of a flat buffer.
///
/// Views that autograd saved alias it, so freeing and refilling goes unseen by them. It has exactly the part's bytes,
/// so saving a tensor writes no more than the tensor. Thread safety: the caller serialises.
class PartStorage {
 public:
  /// Starts without memory. `bytes` is its size from the start, so that views can be taken of it.
  PartStorage(c10::Device device, size_t bytes);

  /// Puts the storage into `buffer`.
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
