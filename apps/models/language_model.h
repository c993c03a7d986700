#pragma once
/// \file
/// Defines the interface of language models that programs use.

#include <torch/nn/modules/linear.h>

#include <limits>
#include <vector>

#include "models/run_part.h"

namespace models {

/// Consecutive blocks of a model. The first block includes the embedding; the last block includes the norm that follows
/// it, and the head.
struct BlockRange {
  int64_t first = 0, end = std::numeric_limits<int64_t>::max();
};
/// The blocks that a rank has, which are those of its pipeline stages; empty means all blocks. A model that lacks
/// blocks still draws the initial values of all blocks, so with the same seed its parameters have the same values as in
/// the whole model. They also have the same names, because an Identity module takes the place of each missing block.
using OwnBlocks = std::vector<BlockRange>;

class LanguageModelImpl : public torch::nn::Module {
 public:
  /// `ids` holds token numbers of shape [batch, tokens], with at most as many tokens as the longest context. Returns
  /// logits of shape [batch, tokens, vocab]; the logits of a position depend only on the tokens up to that position.
  /// `targets` holds the next tokens, of shape [batch, tokens]. If it is given, returns the mean cross entropy over the
  /// targets that are not -100, without ever holding all logits in memory. Inside an fsdp::SequenceParallel both
  /// arguments are this rank's tokens, and the mean is taken over all ranks.
  torch::Tensor forward(const torch::Tensor& ids, const torch::Tensor& targets = {});

  /// Runs some of the blocks. `x` holds token numbers for the first block; for other blocks it holds the previous
  /// block's output, of shape [batch, tokens, dim]. Returns the input of the next block or, after the last, of `head`.
  virtual torch::Tensor run_blocks(torch::Tensor x, BlockRange blocks) = 0;
  /// Returns the loss as `forward` does, from the output of the last block.
  torch::Tensor loss(const torch::Tensor& features, const torch::Tensor& targets);

  /// The layer that returns logits. It has no bias.
  torch::nn::Linear head{nullptr};
  /// Runs each block.
  RunPart run_block;
};

/// Returns the mean cross entropy of `logits`, of shape [batch, tokens, vocab], against the next tokens `targets`, of
/// shape [batch, tokens].
torch::Tensor next_token_loss(const torch::Tensor& logits, const torch::Tensor& targets);

}  // namespace models
