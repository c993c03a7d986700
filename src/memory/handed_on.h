#pragma once
/// \file
/// A tensor that one stream of an accelerator hands on to another.

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <optional>

namespace fsdp::memory {

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
