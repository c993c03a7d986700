#pragma once
/// \file
/// Blocks of memory that hold several tensors, the accelerator streams that use such a block, and storages that keep
/// their identity while their memory is freed and allocated again.

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memory/byte_account.h"

namespace fsdp::memory {

/// The dtype of elements and the device on which they lie.
struct Form {
  c10::ScalarType dtype;
  c10::Device device;

  size_t bytes(int64_t numel) const { return static_cast<size_t>(numel) * c10::elementSize(dtype); }
  bool operator==(const Form&) const = default;
};

inline Form form_of(const at::Tensor& tensor) { return {tensor.scalar_type(), tensor.device()}; }

/// Passes a tensor from one stream to another. `take` makes the calling thread's current stream wait for all work that
/// is queued by then on the stream that was current in `put`, and keeps the tensor's memory until both streams are done
/// with it. On the CPU this class just holds the tensor. Thread safety: the caller serialises.
class HandedOn {
 public:
  bool defined() const { return tensor_.defined(); }
  void put(at::Tensor tensor);
  /// Returns the tensor and forgets it; an undefined tensor if there is none.
  at::Tensor take();

 private:
  at::Tensor tensor_;
  std::optional<c10::Stream> stream_;  // none on the CPU
};

/// A block of memory that is counted on an account while it lives. Its parts (PartStorage) hold references to it, so
/// the block is freed with the last of them.
///
/// A caching allocator reuses a block on the stream on which it was allocated as soon as the host frees it. The
/// destructor therefore makes that stream, which was current in the constructor, wait for all other streams that use
/// the block. Thread safety: the caller serialises.
class FlatBuffer {
 public:
  FlatBuffer(c10::DataPtr data, size_t bytes, std::shared_ptr<ByteAccount> account, ByteClass cls);
  ~FlatBuffer();
  FlatBuffer(const FlatBuffer&) = delete;
  FlatBuffer& operator=(const FlatBuffer&) = delete;

  void* data() const { return data_.get(); }
  c10::Device device() const { return data_.device(); }
  /// Notes that the calling thread's current stream uses the block. Returns true if this stream had not been noted
  /// before; false on the CPU.
  bool note_use();
  /// These functions advise the system about a block in a file and do nothing for other blocks. `read_ahead` says that
  /// the block is used soon; `mark_cold` says that it is not used soon, so that the system frees its pages first.
  void read_ahead() const noexcept;
  void mark_cold() const noexcept;

 private:
  size_t bytes_in_file_;
  Charge charge_;
  c10::DataPtr data_;
  std::optional<c10::Stream> own_stream_;  // none on the CPU
  std::vector<c10::Stream> users_;
};

/// Returns the flat buffer in which the tensor's memory lies; null if it lies in none.
std::shared_ptr<FlatBuffer> buffer_of(const at::Tensor& tensor);
/// Notes in the tensor's flat buffer, if it has one, that the calling thread's current stream uses the memory.
void note_use(const at::Tensor& tensor);

/// Frees the memory of a storage for good. Raw access to a tensor that still has the storage throws `error`.
void end_storage(const c10::Storage& storage, const std::string& error);

/// The StorageImpl of one parameter's rows, whole value or gradient. Its memory is a part of a flat buffer.
///
/// Views that autograd saved share this StorageImpl, so they stay valid when its memory is freed and filled again. Its
/// size is exactly that of the part, so saving a tensor writes no more than the tensor. Thread safety: the caller
/// serialises.
class PartStorage {
 public:
  /// Makes a storage without memory. Its size is `bytes` from the start, so that tensors can be made on it.
  PartStorage(c10::Device device, size_t bytes);

  /// Gives the storage the part of `buffer` that begins at `byte_offset`.
  void attach(const std::shared_ptr<FlatBuffer>& buffer, size_t byte_offset);
  /// Takes the memory away. Raw access to the storage then throws `error` instead of crashing.
  void detach(const std::string& error) { end_storage(storage_, error); }

  c10::StorageImpl* impl() const { return storage_.unsafeGetStorageImpl(); }
  /// Returns a tensor on the storage, even if the storage has no memory.
  at::Tensor tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype) const;

 private:
  c10::Storage storage_;
};

/// Returns `numel` elements of `buffer` as a tensor of one dim.
at::Tensor flat_tensor(const std::shared_ptr<FlatBuffer>& buffer, size_t byte_offset, int64_t numel,
                       c10::ScalarType dtype);

/// `numel` contiguous elements in `buffer`, which is null while they have no memory.
struct FlatPart {
  Form form;
  int64_t numel = 0;
  std::shared_ptr<FlatBuffer> buffer = nullptr;
  size_t byte_offset = 0;

  size_t bytes() const { return form.bytes(numel); }
  at::Tensor tensor() const { return flat_tensor(buffer, byte_offset, numel, form.dtype); }
};

}  // namespace fsdp::memory
