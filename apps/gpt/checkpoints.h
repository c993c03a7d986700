#pragma once
/// \file
/// Loads initial values and resumes from checkpoints.

#include <fsdp/optim.h>
#include <fsdp/trainer.h>

#include "arguments.h"
#include "model.h"
#include "stages.h"
#include "text/text_batches.h"

namespace gpt {

/// Converts a step between two numbers of ranks. `step` counts steps of a run whose epochs have `then` steps. Returns
/// the step of a run whose epochs have `now` steps that lies at the same place of the epoch. The result is rounded
/// down, so a part of a step may be repeated. Returns `step` itself if one of the runs has no epochs (0). A pure
/// function.
int64_t step_at(int64_t step, int64_t then, int64_t now);

/// Resumes from the newest checkpoint of `resume`, or else loads the values of `init_from`. If the model is split into
/// `stages`, `init_from` must be a checkpoint; `stages` is null if this rank has the whole model. Also makes the
/// trainer store in its checkpoints how many steps an epoch has, because `restore` needs this number. Collective.
/// Throws fsdp::Error if `resume` has no checkpoint and `save` is another folder. The trainer keeps references to
/// `batches` and `arguments`.
void restore(fsdp::Trainer& trainer, Model& model, const Stages* stages, torch::optim::Optimizer& optimizer,
             const text::TextBatches& batches, const Arguments& arguments);

}  // namespace gpt
