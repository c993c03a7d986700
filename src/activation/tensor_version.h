#pragma once
/// \file
/// Detection of in-place writes to a tensor.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>

namespace fsdp::activation {

/// A tensor's current version, as autograd counts writes to the tensor and its views. Does not keep the tensor's memory
/// alive. Tensors of inference mode have no version.
class TensorVersion {
 public:
  explicit TensorVersion(const at::Tensor& tensor)
      : counter_(torch::autograd::impl::version_counter(tensor)),
        version_(counter_.enabled() ? counter_.current_version() : 0) {}

  bool was_written() const { return counter_.enabled() && counter_.current_version() != version_; }
  /// Resets the version, so that writes since then do not count.
  void restore() {
    if (counter_.enabled()) counter_.set_version(version_);
  }

 private:
  c10::VariableVersion counter_;
  uint32_t version_;
};

}  // namespace fsdp::activation
