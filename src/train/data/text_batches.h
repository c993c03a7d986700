#pragma once
/// \file
/// Which tokens of a text a rank sees in which step.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace fsdp::data {

/// Sequences and, for each of their tokens, the one that follows. Both [sequences, seq].
struct TextBatch {
  at::Tensor inputs, targets;
};

struct TextBatchesOptions {
  /// Tokens of a sequence, sequences of one rank and micro-batch, and micro-batches of a step.
  int64_t seq = 0, sequences = 1, micro_batches = 1;
  /// Passes over the text, which decide on the steps; 0: `steps` of sequences from anywhere.
  int64_t epochs = 0, steps = 0;
  int64_t seed = 0;
  int64_t rank = 0, world_size = 1;
};

/// A text as this rank's batches. The joined batch of a step depends on the seed, the step or epoch, and its size only,
/// and is dealt to micro-batches first, then to ranks: two ranks with 8 sequences each see what one rank with 16 sees,
/// or with two micro-batches of 8. Thread safety: all of it.
class TextBatches {
 public:
  /// Of texts that are flat and int64. Throws std::invalid_argument if one is too short: for a sequence to train on, or
  /// with epochs for a step, and for a sequence of each rank to validate with.
  TextBatches(at::Tensor training, at::Tensor validation, const TextBatchesOptions& options);

  int64_t steps() const { return steps_; }
  /// 0: there are no epochs.
  int64_t steps_of_epoch() const { return steps_of_epoch_; }
  /// Of an epoch, or all if there are no epochs.
  int64_t steps_of_pass() const { return steps_of_epoch_ > 0 ? steps_of_epoch_ : steps_; }
  /// Over all ranks.
  int64_t tokens_per_step() const;
  /// The epoch that ends when `done` steps are done; 0 if none does.
  int64_t ended_epoch(int64_t done) const;

  /// A pass sees each of the sequences that the text is cut into once, in an order of its own; what is left over of
  /// them after the last whole step is left out.
  TextBatch training(int64_t step, int64_t micro_batch) const;
  /// The validation text cut into sequences, each rank the same number of them: fewer than one for each rank are left
  /// out at the end. The last batch may be smaller, on every rank alike.
  std::vector<TextBatch> validation() const;

 private:
  int64_t sequences_per_step() const;
  at::Tensor starts(int64_t step) const;

  at::Tensor training_, validation_;
  TextBatchesOptions options_;
  int64_t steps_of_epoch_ = 0;
  int64_t steps_;
};

}  // namespace fsdp::data
