#include "models/language_model.h"

#include <torch/nn/functional/loss.h>

namespace models {

torch::Tensor next_token_loss(const torch::Tensor& logits, const torch::Tensor& targets) {
  return torch::nn::functional::cross_entropy(logits.reshape({-1, logits.size(-1)}), targets.reshape(-1));
}

}  // namespace models
