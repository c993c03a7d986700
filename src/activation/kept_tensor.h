#pragma once
/// \file
/// The inputs of a checkpointed region, kept until it is recomputed.

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <optional>

#include "activation/tensor_version.h"

namespace fsdp::activation {

/// A copy in host memory of a tensor on an accelerator. The copy runs on a stream of its own. The allocator may reuse a
/// tensor's memory on the stream it was allocated on as soon as the host frees it, so `finish` makes that stream wait
/// for the copy before the tensor is freed. The same holds for copying back ahead of time, where memory of the current
/// stream is filled by another stream. The copy has the tensor's strides, because operators depend on them; the tensor
/// must fill its memory without gaps.
class HostCopy {
 public:
  explicit HostCopy(at::Tensor tensor);
  HostCopy(HostCopy&&) = default;
  HostCopy& operator=(HostCopy&&) = delete;
  ~HostCopy();
  /// Makes the current stream wait for the copy, and frees the tensor on the device.
  void finish();
  /// Starts to copy back on another stream; no effect if that has started already.
  void bring();
  /// Frees a copy that was brought back but not used.
  void drop();
  /// The tensor on the device, ready for the current stream.
  at::Tensor back();
  int64_t bytes() const { return static_cast<int64_t>(host_.nbytes()); }

 private:
  at::Tensor leaving_;  // undefined once the copy is finished
  at::Tensor host_;
  const c10::Device device_;
  c10::Event copied_;
  struct Brought {
    at::Tensor tensor;
    c10::Stream stream;  // the stream whose memory it is
    c10::Event copied;
  };
  std::optional<Brought> brought_;
};

class KeptTensor {
 public:
  /// `is_inside`: the region is nested in another one. Then the tensor is not kept: autograd saves it, so the outer
  /// region's hooks recompute it.
  KeptTensor(const at::Tensor& tensor, bool offload, bool is_inside);

  void finish() {
    if (host_) host_->finish();
  }
  /// Whether the tensor was written in place since it was passed.
  bool was_written() const { return version_ && version_->was_written(); }
  /// For a tensor in host memory see HostCopy; for other tensors these functions do nothing.
  bool is_on_host() const { return host_.has_value(); }
  void bring() {
    if (host_) host_->bring();
  }
  void drop() {
    if (host_) host_->drop();
  }
  /// The tensor without autograd history, so that the second run is recorded anew.
  at::Tensor value();
  /// The storage that is kept on the model's device, perhaps shared with other owners; null if there is none.
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
