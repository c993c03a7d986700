#pragma once
/// \file
/// How far training is, as checkpoints have it.

#include <fsdp/trainer_options.h>

#include <string>

namespace fsdp::train {

/// The place of a training of `world_size` ranks, as JSON. It says by how many ranks it was reached, since a checkpoint
/// that was rewritten for others no longer does.
std::string state_of(const TrainingPlace& place, int world_size);

/// Where a training goes on.
struct ResumedPlace {
  TrainingPlace place = {};
  /// How many batches fewer than `place` says the epoch may have. If other ranks saved the place, they cut the same
  /// samples into other batches, and at the end of an epoch each rank's last batch may have been a small one.
  int64_t may_lack = 0;
};

/// Where a training of `world_size` ranks goes on: with as many ranks as saved it where that was; with others after as
/// many batches of all ranks together, rounded down to whole ones of each rank, so that no batch is left out and fewer
/// than `world_size` are seen twice. Without a state of a Trainer, after `loaded.step` steps of `accumulate` batches in
/// the first epoch. Throws Error for another text.
ResumedPlace place_in(const LoadedCheckpoint& loaded, int world_size, int64_t accumulate);

}  // namespace fsdp::train
