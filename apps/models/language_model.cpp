#include "models/language_model.h"

#include <fsdp/linear_cross_entropy.h>
#include <fsdp/sequence_parallel.h>
#include <torch/nn/functional/loss.h>

namespace models {

torch::Tensor LanguageModelImpl::forward(const torch::Tensor& ids, const torch::Tensor& targets) {
  const auto features = run_blocks(ids, {});
  return targets.defined() ? loss(features, targets) : head(features);
}

torch::Tensor LanguageModelImpl::loss(const torch::Tensor& features, const torch::Tensor& targets) {
  const auto mean = fsdp::linear_cross_entropy(features.flatten(0, 1), head->weight, targets.flatten());
  const auto count = targets.ne(-100).sum();
  return fsdp::sequence_mean(mean * count, count);
}

torch::Tensor next_token_loss(const torch::Tensor& logits, const torch::Tensor& targets) {
  return torch::nn::functional::cross_entropy(logits.reshape({-1, logits.size(-1)}), targets.reshape(-1));
}

}  // namespace models
