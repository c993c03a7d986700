#pragma once
/// \file
/// Saves and loads checkpoints of the tensors of a model or a pipeline. The public functions of fsdp/checkpoint.h,
/// fsdp/async_save.h and fsdp/pipeline.h call the functions below. All of them are collective.

#include <fsdp/async_save.h>

#include <string>

#include "state/model_tensors.h"

namespace fsdp::state {

inline constexpr char kSave[] = "save_checkpoint", kAsyncSave[] = "async_save_checkpoint", kLoad[] = "load_checkpoint";

void save(const std::string& folder, ModelTensors tensors, const torch::optim::Optimizer* optimizer,
          const SaveOptions& options);
void async_save(AsyncSave& saving, const std::string& folder, ModelTensors tensors,
                const torch::optim::Optimizer* optimizer, const SaveOptions& options);
LoadedCheckpoint load(const std::string& folder, ModelTensors tensors, torch::optim::Optimizer* optimizer,
                      const LoadOptions& options);

}  // namespace fsdp::state
