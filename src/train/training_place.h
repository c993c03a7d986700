#pragma once
/// \file
/// The position of a training in its epochs, as stored in checkpoints.

#include <fsdp/trainer_options.h>

#include <string>

namespace fsdp::train {

/// The position of a training on `world_size` ranks, as JSON. It includes the number of ranks, because a checkpoint
/// that was rewritten for another number no longer has it.
std::string state_of(const TrainingPlace& place, int world_size);

/// The position from which a training continues.
struct ResumedPlace {
  TrainingPlace place = {};
  /// The number of batches by which the epoch may be shorter than `place` says. If another number of ranks saved the
  /// position, the same samples were divided into other batches, and each rank's last batch may have been small.
  int64_t may_lack = 0;
};

/// The position from which a training on `world_size` ranks continues. With the number of ranks that saved it, this is
/// the saved position. With another number, it is the same number of batches of all ranks together, rounded down to
/// whole batches per rank, so that no batch is left out and fewer than `world_size` are repeated. Without a Trainer's
/// state, it is after `loaded.step` steps of `accumulate` batches in the first epoch. Throws Error for other text.
ResumedPlace place_in(const LoadedCheckpoint& loaded, int world_size, int64_t accumulate);

}  // namespace fsdp::train
