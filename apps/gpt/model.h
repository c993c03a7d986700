#pragma once
/// \file
/// The model that the arguments describe, and how it is trained.

#include <fsdp/sharded.h>
#include <fsdp/trainer_options.h>

#include <memory>

#include "arguments.h"
#include "models/language_model.h"

namespace gpt {

using Module = std::shared_ptr<models::LanguageModelImpl>;
using Model = fsdp::Sharded<Module>;

/// On `device`, with the same values for the same seed.
Module make_module(const Arguments& arguments, int64_t vocabulary, c10::Device device);

/// What the trainer does with it: each block becomes a group of its own, the rest the outermost one. Collective where
/// the arguments name a mesh.
fsdp::TrainerOptions trainer_options(const Arguments& arguments, int64_t steps);

}  // namespace gpt
