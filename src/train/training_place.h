#pragma once
/// \file
/// How far training is, as checkpoints have it.

#include <fsdp/trainer_options.h>

#include <string>

namespace fsdp::train {

/// JSON.
std::string state_of(const TrainingPlace& place);

/// Where a training of `world_size` ranks goes on that takes `accumulate` batches in a step: with as many ranks as saved
/// it where that was; with others where the ranks together have come as far in the epoch, to the step. Without a state
/// of a Trainer, `loaded.step` steps into the first epoch. Throws Error for another text.
TrainingPlace place_in(const LoadedCheckpoint& loaded, int world_size, int64_t accumulate);

}  // namespace fsdp::train
