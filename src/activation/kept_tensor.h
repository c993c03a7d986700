#pragma once
/// \file
/// A tensor that a part of forward was given, until it is computed again.

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <optional>

#include "activation/tensor_version.h"

namespace fsdp::activation {

/// A tensor in host memory in place of one on an accelerator. The copy runs beside the stream that it is made on, whose
/// memory it leaves by `finish`: an allocator hands memory out again on the stream that it was taken on as soon as the
/// host lets it go, so that stream has to have been made to wait for the copy. The same holds of a copy back that is
/// brought ahead: its memory is the current stream's, another one fills it. A copy lies as the tensor does, which has
/// to fill its memory without gaps: operators look at strides.
class HostCopy {
 public:
  explicit HostCopy(at::Tensor tensor);
  HostCopy(HostCopy&&) = default;
  HostCopy& operator=(HostCopy&&) = delete;
  ~HostCopy();
  /// What the current stream does from here on comes after the copy.
  void finish();
  /// Begins to copy it back, beside what the current stream is given from here on. Nothing if that was done.
  void bring();
  /// What was brought and not asked for goes.
  void drop();
  /// On the device, and on the current stream.
  at::Tensor back();
  int64_t bytes() const { return static_cast<int64_t>(host_.nbytes()); }

 private:
  at::Tensor leaving_;  // none once the copy is finished
  at::Tensor host_;
  const c10::Device device_;
  c10::Event copied_;
  struct Brought {
    at::Tensor tensor;
    c10::Stream stream;  // whose memory it is
    c10::Event copied;
  };
  std::optional<Brought> brought_;
};

class KeptTensor {
 public:
  /// `is_inside`: the part lies in another one that is computed again. Then the tensor is not kept, but computed again
  /// itself: it is one that autograd keeps, so the outer part's hooks have it.
  KeptTensor(const at::Tensor& tensor, bool offload, bool is_inside);

  void finish() {
    if (host_) host_->finish();
  }
  /// Whether somebody wrote to the tensor since it was given.
  bool was_written() const { return version_ && version_->was_written(); }
  /// Of a tensor in host memory, see HostCopy; of others nothing.
  bool is_on_host() const { return host_.has_value(); }
  void bring() {
    if (host_) host_->bring();
  }
  void drop() {
    if (host_) host_->drop();
  }
  /// The tensor without its history, to be recorded anew.
  at::Tensor value();
  /// What is held here on the device of the model, by others too perhaps; null: nothing.
  const c10::StorageImpl* storage() const { return storage_; }
  int64_t bytes_on_host() const { return host_ ? host_->bytes() : 0; }

 private:
  std::optional<torch::autograd::SavedVariable> saved_;
  std::optional<HostCopy> host_;
  std::optional<TensorVersion> version_;  // of a tensor that is there
  bool requires_grad_ = false;
  const c10::StorageImpl* storage_ = nullptr;
};

}  // namespace fsdp::activation
