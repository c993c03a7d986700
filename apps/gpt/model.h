#pragma once
/// \file
/// The model that the arguments describe, and its sharded form.

#include <fsdp/sharded.h>

#include <memory>

#include "arguments.h"
#include "models/language_model.h"

namespace gpt {

using Module = std::shared_ptr<models::LanguageModelImpl>;
using Model = fsdp::Sharded<Module>;

/// On `device`, with the same values for the same seed.
Module make_module(const Arguments& arguments, int64_t vocabulary, c10::Device device);

/// Each block becomes a group of its own, the rest the outermost one. Collective.
Model shard(const Module& module, const Arguments& arguments);

/// The GPU of this rank, or the CPU: there is none, this build cannot use it, or the arguments say so.
c10::Device choose_device(const Arguments& arguments);

}  // namespace gpt
