#pragma once
/// \file
/// A tensor that a part of forward was given, until it is computed again.

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <optional>

namespace fsdp::activation {

/// A tensor in host memory in place of one on an accelerator. The copy runs beside the stream that it is made on, whose
/// memory it leaves by `finish`: an allocator hands memory out again on the stream that it was taken on as soon as the
/// host lets it go, so that stream has to have been made to wait for the copy.
class HostCopy {
 public:
  explicit HostCopy(at::Tensor tensor);
  HostCopy(HostCopy&&) = default;
  HostCopy& operator=(HostCopy&&) = delete;
  ~HostCopy();
  /// What the current stream does from here on comes after the copy.
  void finish();
  /// On the device, and on the current stream.
  at::Tensor back() const;
  int64_t bytes() const { return static_cast<int64_t>(host_.nbytes()); }

 private:
  at::Tensor leaving_;  // none once the copy is finished
  at::Tensor host_;
  const c10::Device device_;
  c10::Event copied_;
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
  bool was_written() const { return versions_.enabled() && versions_.current_version() != version_; }
  /// The tensor without its history, to be recorded anew.
  at::Tensor value() const;
  /// What is held here alone, on the device of the model.
  int64_t bytes() const { return bytes_; }

 private:
  std::optional<torch::autograd::SavedVariable> saved_;
  std::optional<HostCopy> host_;
  c10::VariableVersion versions_;
  uint32_t version_ = 0;
  bool requires_grad_ = false;
  int64_t bytes_ = 0;
};

}  // namespace fsdp::activation
