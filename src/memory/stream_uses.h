#pragma once
/// \file
/// Which streams of an accelerator use a block of memory; a tensor that one of them hands on to another.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <optional>
#include <vector>

namespace fsdp::memory {

/// A caching allocator hands a block out again on the stream that it was taken on as soon as the host lets it go; so
/// that stream has to have been made to wait for all others that use the block. On the CPU this knows nothing and does
/// nothing. Thread safety: the caller serialises.
class StreamUses {
 public:
  /// The block was taken on the calling thread's current stream of the device.
  explicit StreamUses(c10::Device device);
  /// That stream waits for the others.
  ~StreamUses();
  StreamUses(const StreamUses&) = delete;
  StreamUses& operator=(const StreamUses&) = delete;

  /// The calling thread's current stream uses the block; whether it is new here.
  bool note_current();

 private:
  const c10::Device device_;
  std::optional<c10::Stream> own_;  // of the block
  std::vector<c10::Stream> users_;
};

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

}  // namespace fsdp::memory
