#pragma once
/// \file
/// Which tokens a rank sees in which step: pure functions of their arguments.

#include <ATen/core/Tensor.h>

#include <vector>

namespace gpt {

/// Sequences and, for each of their tokens, the one that follows. Both [sequences, seq].
struct Batch {
  at::Tensor inputs, targets;
};

struct BatchShape {
  /// Of one rank and micro-batch.
  int64_t sequences = 0;
  int64_t seq = 0;
};

/// One among several: a rank, or one of a rank's micro-batches.
struct Share {
  int64_t index = 0;
  int64_t count = 1;
};

/// Throws std::invalid_argument if the text is too short for the functions below: if training has no sequence of
/// `shape`, or validation not one for each of `ranks`.
void check_lengths(const at::Tensor& training, const at::Tensor& validation, BatchShape shape, int64_t ranks);

/// This rank's part of the joined batch of a step. The joined batch depends on `seed`, `step` and its size only: two
/// ranks with 8 sequences each see what one rank with 16 sees.
Batch training_batch(const at::Tensor& text, BatchShape shape, int64_t seed, int64_t step, Share share);

/// Steps of a pass over `text`, cut into sequences that do not overlap: `shares` batches for each, and what is left
/// over is left out. Throws std::invalid_argument if there is not one.
int64_t steps_of_epoch(const at::Tensor& text, BatchShape shape, int64_t shares);

/// The same for a step of a pass, which sees each of those sequences once, in an order that depends on `seed` and
/// `epoch`.
Batch epoch_batch(const at::Tensor& text, BatchShape shape, int64_t seed, int64_t epoch, int64_t step, Share share);

/// `text` cut into sequences that do not overlap, each rank the same number of them: at most `share.count`
/// sequences at the end are left out. The last batch may be smaller, on every rank alike.
std::vector<Batch> validation_batches(const at::Tensor& text, BatchShape shape, Share share);

}  // namespace gpt
