#pragma once
/// \file
/// Inputs of a checkpointed region, which are kept until the region runs again.

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <optional>

#include "activation/tensor_version.h"

namespace fsdp::activation {

/// A copy in host memory of a tensor on an accelerator. The tensor is copied, and copied back ahead of time, on a side
/// stream. When the host frees a tensor, the allocator may reuse its memory at once on the stream on which the tensor
/// was allocated. That stream must therefore wait for the side stream before the tensor is freed: `finish` and `drop`
/// make it wait. The copy has the strides of the tensor, because operators depend on them; the tensor must have no gaps
/// in memory.
class HostCopy {
 public:
  explicit HostCopy(at::Tensor tensor);
  HostCopy(HostCopy&&) = default;
  HostCopy& operator=(HostCopy&&) = delete;
  ~HostCopy();
  /// Makes the current stream wait until the tensor has been copied, and frees the tensor on the device.
  void finish();
  /// Starts to copy back to the device on a side stream. Does nothing if this has been started already.
  void bring();
  /// Frees a tensor that `bring` allocated and `back` did not return.
  void drop();
  /// Returns the tensor on the device. The current stream may use it.
  at::Tensor back();
  int64_t bytes() const { return static_cast<int64_t>(host_.nbytes()); }

 private:
  at::Tensor leaving_;  // the tensor on the device, until `finish`
  at::Tensor host_;
  const c10::Device device_;
  c10::Event copied_;
  struct Brought {
    at::Tensor tensor;
    c10::Stream stream;  // stream on which the tensor was allocated
    c10::Event copied;
  };
  std::optional<Brought> brought_;
};

/// An input of a checkpointed region.
class KeptTensor {
 public:
  /// If `offload` is true, the tensor is moved to host memory. `is_inside` is true if the region is nested in another
  /// one. The tensor is then not kept, because the outer region's second run computes it again.
  KeptTensor(const at::Tensor& tensor, bool offload, bool is_inside);

  void finish() {
    if (host_) host_->finish();
  }
  /// Returns true if the tensor was written in place after the region got it.
  bool was_written() const { return version_ && version_->was_written(); }
  /// Returns true if a HostCopy keeps the tensor. `finish`, `bring` and `drop` are those of HostCopy; they do nothing
  /// for other tensors.
  bool is_on_host() const { return host_.has_value(); }
  void bring() {
    if (host_) host_->bring();
  }
  void drop() {
    if (host_) host_->drop();
  }
  /// Returns the tensor without autograd history, so that autograd records the second run into a graph of its own.
  at::Tensor value();
  /// Returns the storage on the tensor's device that this object keeps alive; null if there is none. Other owners may
  /// share it.
  const c10::StorageImpl* storage() const { return storage_; }
  int64_t bytes_on_host() const { return host_ ? host_->bytes() : 0; }

 private:
  std::optional<torch::autograd::SavedVariable> saved_;
  std::optional<HostCopy> host_;
  std::optional<TensorVersion> version_;  // unset for an undefined tensor
  bool requires_grad_ = false;
  const c10::StorageImpl* storage_ = nullptr;
};

}  // namespace fsdp::activation
