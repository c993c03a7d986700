#pragma once
/// \file
/// Whether somebody wrote to a tensor.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>

namespace fsdp::activation {

/// The version that a tensor has now, as autograd counts writes to it and its views. Holds none of its memory. Tensors
/// of inference mode have none.
class TensorVersion {
 public:
  explicit TensorVersion(const at::Tensor& tensor)
      : counter_(torch::autograd::impl::version_counter(tensor)),
        version_(counter_.enabled() ? counter_.current_version() : 0) {}

  bool was_written() const { return counter_.enabled() && counter_.current_version() != version_; }
  /// What was written since counts as not written.
  void restore() {
    if (counter_.enabled()) counter_.set_version(version_);
  }

 private:
  c10::VariableVersion counter_;
  uint32_t version_;
};

}  // namespace fsdp::activation
