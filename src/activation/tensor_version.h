#pragma once
/// \file
/// Detection of in-place writes to a tensor.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>

namespace fsdp::activation {

/// The version that a tensor had when this object was made. Autograd increases the version with each in-place write to
/// the tensor or a view of it. The object does not keep the tensor's memory alive. A tensor that was made in inference
/// mode has no version, and its writes are not noticed.
class TensorVersion {
 public:
  explicit TensorVersion(const at::Tensor& tensor)
      : counter_(torch::autograd::impl::version_counter(tensor)),
        version_(counter_.enabled() ? counter_.current_version() : 0) {}

  /// Returns true if the tensor was written after this object was made.
  bool was_written() const { return counter_.enabled() && counter_.current_version() != version_; }
  /// Sets the tensor's version back to the saved one, so that autograd does not notice the writes since then.
  void restore() {
    if (counter_.enabled()) counter_.set_version(version_);
  }

 private:
  c10::VariableVersion counter_;
  uint32_t version_;
};

}  // namespace fsdp::activation
