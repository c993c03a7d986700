#pragma once
/// \file
/// The position of a training in its epochs, as checkpoints store it.

#include <fsdp/trainer_options.h>

#include <string>

namespace fsdp::train {

/// Returns the position of a training on `world_size` ranks as JSON. The JSON includes the number of ranks, because
/// fsdp-ckpt changes Manifest::world_size when it rewrites a checkpoint for another number of ranks.
std::string state_of(const TrainingPlace& place, int world_size);

/// The position from which a training continues.
struct ResumedPlace {
  TrainingPlace place = {};
  /// The number of batches by which a rank's data of the epoch may be shorter than place.batches. It is 0 if the same
  /// number of ranks saved the position. Otherwise the same samples are now divided into other batches, and the last
  /// batch of each rank may have been smaller than the others.
  int64_t may_lack = 0;
};

/// Returns the position from which a training on `world_size` ranks continues. If the same number of ranks saved the
/// position, it is the saved one. If a different number saved it, all ranks together have completed as many batches as
/// before, rounded down to whole batches per rank, so that training skips no batch and repeats fewer than `world_size`
/// of them. If the checkpoint has no state of a Trainer, `loaded.step` steps of `accumulate` batches count as completed
/// in the first epoch. Throws Error if the state is not one that a Trainer wrote.
ResumedPlace place_in(const LoadedCheckpoint& loaded, int world_size, int64_t accumulate);

}  // namespace fsdp::train
