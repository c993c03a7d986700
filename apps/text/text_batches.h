#pragma once
/// \file
/// Distribution of a text's tokens over ranks and steps.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace text {

/// Input sequences and, for each token, the token that follows it. Both [sequences, seq].
struct TextBatch {
  at::Tensor inputs, targets;
};

struct TextBatchesOptions {
  /// Tokens per sequence, sequences per rank and micro-batch, and micro-batches per step.
  int64_t seq = 0, sequences = 1, micro_batches = 1;
  /// Passes over the text, which determine the number of steps. If 0, there are `steps` steps with sequences from
  /// random places.
  int64_t epochs = 0, steps = 0;
  int64_t seed = 0;
  int64_t rank = 0, world_size = 1;
};

/// This rank's batches of a text. The joined batch of a step depends only on the seed, on the step or epoch, and on its
/// size. It is divided first into micro-batches, then among ranks, so two ranks with 8 sequences each see the same as
/// one rank with 16, or one with two micro-batches of 8. Thread-safe.
class TextBatches {
 public:
  /// The texts are flat and int64. Throws std::invalid_argument if the training text is too short for one sequence, or
  /// with epochs for one step, or the validation text for one sequence per rank.
  TextBatches(at::Tensor training, at::Tensor validation, const TextBatchesOptions& options);

  int64_t steps() const { return steps_; }
  /// The number of steps of an epoch; 0 without epochs.
  int64_t steps_of_epoch() const { return steps_of_epoch_; }
  /// The number of steps of an epoch, or without epochs of the whole training.
  int64_t steps_of_pass() const { return steps_of_epoch_ > 0 ? steps_of_epoch_ : steps_; }
  /// The number of tokens of all ranks in a step.
  int64_t tokens_per_step() const;
  /// The number of epochs that are complete after `done` steps, if an epoch ends there; otherwise 0.
  int64_t ended_epoch(int64_t done) const;

  /// This rank's part of a micro-batch. With epochs, each epoch sees every sequence of the text once, in a random
  /// order, except those left over after the last whole step.
  TextBatch training(int64_t step, int64_t micro_batch) const;
  /// The validation text as sequences, the same number for each rank; sequences at the end that do not suffice for all
  /// ranks are omitted. The last batch may be smaller, on all ranks alike.
  std::vector<TextBatch> validation() const;

 private:
  int64_t sequences_per_step() const;
  at::Tensor starts(int64_t step) const;

  at::Tensor training_, validation_;
  TextBatchesOptions options_;
  int64_t steps_of_epoch_ = 0;
  int64_t steps_;
};

}  // namespace text
