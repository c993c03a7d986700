#pragma once
/// \file
/// The model that the arguments describe, and how it is trained.

#include <fsdp/sharded.h>
#include <fsdp/trainer_options.h>

#include <memory>

#include "arguments.h"
#include "axes.h"
#include "models/language_model.h"

namespace gpt {

using Module = std::shared_ptr<models::LanguageModelImpl>;
using Model = fsdp::Sharded<Module>;

/// On `device`, with the same values for the same seed; this rank's part of each block where ranks of a tensor axis
/// share them, and of the blocks `own` alone.
Module make_module(const Arguments& arguments, int64_t vocabulary, c10::Device device,
                   const std::shared_ptr<fsdp::ProcessGroup>& tensor_axis = nullptr, const models::OwnBlocks& own = {});

/// What the trainer does with it: each block becomes a group of its own, the rest the outermost one. Collective where
/// the arguments name a mesh.
fsdp::TrainerOptions trainer_options(const Arguments& arguments, const AxisSizes& sizes, int64_t steps);

}  // namespace gpt
