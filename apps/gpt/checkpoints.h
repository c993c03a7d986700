#pragma once
/// \file
/// What a training begins with, and what it leaves behind to go on from.

#include <fsdp/optim.h>
#include <fsdp/trainer.h>

#include "arguments.h"
#include "model.h"
#include "stages.h"
#include "text/text_batches.h"

namespace gpt {

/// The step of a training at the place that `step` has in one whose epochs have `then` steps, where they have `now`, as
/// other numbers of ranks make them; `step` itself without epochs (0). A step that is cut by this is done again. Pure.
int64_t step_at(int64_t step, int64_t then, int64_t now);

/// Begins with what the arguments name: the newest checkpoint of `resume`, or else the values of `init_from`, which are
/// those of a checkpoint where the model is this rank's `stages` (null: it is whole); the trainer's checkpoints get
/// what that needs. Collective. Throws fsdp::Error if there is none, but where `save` will write the first one. The
/// trainer keeps references to `batches` and `arguments`.
void restore(fsdp::Trainer& trainer, Model& model, const Stages* stages, torch::optim::Optimizer& optimizer,
             const text::TextBatches& batches, const Arguments& arguments);

}  // namespace gpt
