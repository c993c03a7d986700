#pragma once
/// \file
/// What a training begins with, and what it leaves behind to go on from.

#include <fsdp/async_save.h>
#include <fsdp/grad_scaler.h>
#include <fsdp/optim.h>

#include <string>

#include "arguments.h"
#include "model.h"
#include "train/data/text_batches.h"

namespace gpt {

/// The step of a training at the place that `step` has in one whose epochs have `then` steps, where they have `now`, as
/// other numbers of ranks make them; `step` itself without epochs (0). A step that is cut by this is done again. Pure.
int64_t step_at(int64_t step, int64_t then, int64_t now);

/// Loads what the arguments name: the newest checkpoint of `resume`, or else the values of `init_from`. Returns the
/// steps that are done. Collective. Throws fsdp::Error if there is none, but where `save` will write the first one.
int64_t restore(Model& model, torch::optim::Optimizer& optimizer, fsdp::GradScaler& scaler,
                const fsdp::data::TextBatches& batches, const Arguments& arguments);

bool saves_after(int64_t done, int64_t steps, const Arguments& arguments);

/// Writes a checkpoint, or has `saving` begin to, and returns a line that says so. Collective.
std::string save(fsdp::AsyncSave& saving, const Model& model, const torch::optim::Optimizer& optimizer,
                 const fsdp::GradScaler& scaler, const fsdp::data::TextBatches& batches, int64_t done,
                 const Arguments& arguments);

}  // namespace gpt
