#pragma once
/// \file
/// What programs need of a model that continues texts, whichever it is.

#include <torch/nn/modules/linear.h>

#include <limits>
#include <vector>

#include "models/run_part.h"

namespace models {

/// Consecutive blocks of a model. With the first block goes the embedding, with the last one the norm behind it and the
/// head.
struct BlockRange {
  int64_t first = 0, end = std::numeric_limits<int64_t>::max();
};
/// The blocks that a rank has, those of its stages; empty: all. A model that lacks some draws the values of all, so its
/// own are those of the whole model under the same seed, and names its parameters as the whole model does. An Identity
/// stands for each block that it lacks.
using OwnBlocks = std::vector<BlockRange>;

class LanguageModelImpl : public torch::nn::Module {
 public:
  /// `ids`: token numbers, [batch, at most the longest context]. Returns logits, [batch, tokens, vocab]; those of a
  /// position depend on the tokens up to it only. With `targets`, the tokens that came, [batch, tokens]: the mean cross
  /// entropy of these logits, which are never all in memory, over the targets that are not -100. In a
  /// fsdp::SequenceParallel both are this rank's tokens, and the mean is that over all ranks.
  torch::Tensor forward(const torch::Tensor& ids, const torch::Tensor& targets = {});

  /// Runs some of the blocks. `x`: token numbers for the first block, else what the block before gives, [batch, tokens,
  /// dim]. Behind the last block it returns what `head` is given.
  virtual torch::Tensor run_blocks(torch::Tensor x, BlockRange blocks) = 0;
  /// The loss of what the last block gave, as forward returns it.
  torch::Tensor loss(const torch::Tensor& features, const torch::Tensor& targets);

  /// Without a bias.
  torch::nn::Linear head{nullptr};
  /// How each block is run.
  RunPart run_block;
};

/// Mean cross entropy of `logits` [batch, tokens, vocab] against the tokens that came, [batch, tokens].
torch::Tensor next_token_loss(const torch::Tensor& logits, const torch::Tensor& targets);

}  // namespace models
