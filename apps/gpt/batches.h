#pragma once
/// \file
/// Which characters a rank sees in which step: pure functions of their arguments.

#include <ATen/core/Tensor.h>

#include <vector>

namespace gpt {

/// Sequences and, for each of their characters, the one that follows. Both [sequences, seq].
struct Batch {
  at::Tensor inputs, targets;
};

struct BatchShape {
  /// Of one rank.
  int64_t sequences = 0;
  int64_t seq = 0;
};

/// One among several.
struct Share {
  int rank = 0;
  int world_size = 1;
};

/// This rank's part of the joined batch of a step. The joined batch depends on `seed`, `step` and its size only: two
/// ranks with 8 sequences each see what one rank with 16 sees. Throws std::invalid_argument if `text` is too short.
Batch training_batch(const at::Tensor& text, BatchShape shape, int64_t seed, int64_t step, Share share);

/// `text` cut into sequences that do not overlap, each rank the same number of them: at most `share.world_size`
/// sequences at the end are left out. The last batch may be smaller, on every rank alike. Throws std::invalid_argument
/// if there are fewer sequences than ranks.
std::vector<Batch> validation_batches(const at::Tensor& text, BatchShape shape, Share share);

}  // namespace gpt
