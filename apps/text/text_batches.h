#pragma once
/// \file
/// Distributes a text's tokens over ranks and steps.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace text {

/// Input sequences and, for each of their tokens, the token that follows it. Both tensors have the sizes [sequences,
/// seq].
struct TextBatch {
  at::Tensor inputs, targets;
};

struct TextBatchesOptions {
  /// The number of tokens per sequence, of sequences per rank and micro-batch, and of micro-batches per step.
  int64_t seq = 0, sequences = 1, micro_batches = 1;
  /// The number of passes over the text. It determines the number of steps, and `steps` is not used. If `epochs` is 0,
  /// there are `steps` steps with sequences from random places.
  int64_t epochs = 0, steps = 0;
  int64_t seed = 0;
  int64_t rank = 0, world_size = 1;
};

/// This rank's batches of a text. The batch of all ranks in a step depends only on the seed, the step and the size of
/// the batch. It is divided first into micro-batches, then among ranks, so two ranks with 8 sequences each together see
/// the same sequences as one rank with 16, or as one rank with two micro-batches of 8. Thread-safe.
class TextBatches {
 public:
  /// The texts are int64 tensors of one dim. Throws std::invalid_argument if the training text is too short for one
  /// sequence (with epochs: for one step), or if the validation text is too short for one sequence per rank.
  TextBatches(at::Tensor training, at::Tensor validation, const TextBatchesOptions& options);

  int64_t steps() const { return steps_; }
  /// Number of steps of an epoch, or 0 without epochs.
  int64_t steps_of_epoch() const { return steps_of_epoch_; }
  /// Number of steps of an epoch, or of the whole training if there are no epochs.
  int64_t steps_of_pass() const { return steps_of_epoch_ > 0 ? steps_of_epoch_ : steps_; }
  /// Number of tokens of all ranks in a step.
  int64_t tokens_per_step() const;
  /// Number of epochs that are complete after `done` steps if an epoch ends with the last of these steps, otherwise 0.
  int64_t ended_epoch(int64_t done) const;

  /// Returns this rank's part of a micro-batch. With epochs, the ranks together see every sequence of the text once in
  /// an epoch, in a random order, except those that remain after the last whole step.
  TextBatch training(int64_t step, int64_t micro_batch) const;
  /// Returns this rank's part of the validation text as batches of sequences. All ranks get equally many sequences;
  /// those at the end that do not suffice for all ranks are omitted. The last batch may be smaller, and has the same
  /// size on all ranks.
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
