#pragma once
/// \file
/// Makes the model that the arguments describe, and the options of its trainer.

#include <fsdp/sharded.h>
#include <fsdp/trainer_options.h>

#include <memory>

#include "arguments.h"
#include "axes.h"
#include "models/language_model.h"

namespace gpt {

using Module = std::shared_ptr<models::LanguageModelImpl>;
using Model = fsdp::Sharded<Module>;

/// Makes the model on `device`. The same seed gives the same values on every rank. If `tensor_axis` is not null, this
/// rank has its part of each block. It has only the blocks in `own`, or all blocks if `own` is empty.
Module make_module(const Arguments& arguments, int64_t vocabulary, c10::Device device,
                   const std::shared_ptr<fsdp::ProcessGroup>& tensor_axis = nullptr, const models::OwnBlocks& own = {});

/// Returns the options of the trainer. They make each block a group of its own, and all other parameters belong to the
/// root group. Collective if the arguments describe a mesh.
fsdp::TrainerOptions trainer_options(const Arguments& arguments, const AxisSizes& sizes, int64_t steps);

}  // namespace gpt
