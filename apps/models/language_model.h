#pragma once
/// \file
/// What programs need of a model that continues texts, whichever it is.

#include <torch/nn/modules/linear.h>

#include "models/run_part.h"

namespace models {

class LanguageModelImpl : public torch::nn::Module {
 public:
  /// `ids`: token numbers, [batch, at most the longest context]. Returns logits, [batch, tokens, vocab]; those of a
  /// position depend on the tokens up to it only. With `targets`, the tokens that came, [batch, tokens]: the mean cross
  /// entropy of these logits, which are never all in memory, over the targets that are not -100. In a
  /// fsdp::SequenceParallel both are this rank's tokens, and the mean is that over all ranks.
  torch::Tensor forward(const torch::Tensor& ids, const torch::Tensor& targets = {});

  /// Without a bias.
  torch::nn::Linear head{nullptr};
  /// How each block is run.
  RunPart run_block;

 private:
  /// What `head` is given, [batch, tokens, dim].
  virtual torch::Tensor features(const torch::Tensor& ids) = 0;
};

/// Mean cross entropy of `logits` [batch, tokens, vocab] against the tokens that came, [batch, tokens].
torch::Tensor next_token_loss(const torch::Tensor& logits, const torch::Tensor& targets);

}  // namespace models
