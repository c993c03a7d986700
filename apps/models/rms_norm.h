#pragma once
/// \file
/// A norm that does not subtract the mean.

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

namespace models {

/// Computes x / sqrt(mean(x^2) + eps) * weight over the last dim, which has `dim` elements: Zhang and Sennrich 2019,
/// "Root mean square layer normalization". The weight is initialized to ones.
class RMSNormImpl : public torch::nn::Module {
 public:
  explicit RMSNormImpl(int64_t dim, double eps = 1e-5);
  torch::Tensor forward(const torch::Tensor& x);

  torch::Tensor weight;

 private:
  double eps_;
};
TORCH_MODULE(RMSNorm);

}  // namespace models
