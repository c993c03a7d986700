#include "checkpoints.h"

#include <fsdp/checkpoint.h>
#include <fsdp/collectives.h>
#include <fsdp/process_group.h>
#include <fsdp/state_dict.h>
#include <torch/types.h>

#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "models/gpt2_folder.h"

namespace gpt {
namespace {

namespace fs = std::filesystem;

constexpr char kStepsOfEpoch[] = "steps_of_epoch";

enum class Origin : int64_t { kGpt2Folder, kCheckpoint, kFile };

// Returns what kind of file or folder `path` is. Rank 0 looks and broadcasts its result, so all ranks agree.
// Collective.
Origin origin_of(const std::string& path) {
  const auto seen = fs::exists(fs::path(path) / "config.json") ? Origin::kGpt2Folder
                    : fs::is_directory(path)                   ? Origin::kCheckpoint
                                                               : Origin::kFile;
  return static_cast<Origin>(fsdp::broadcast(torch::tensor(static_cast<int64_t>(seen))).item<int64_t>());
}

// Loads a GPT-2 that transformers saved. First compares the configurations, because the shapes of the tensors do not
// show the number of heads or the kind of GELU.
void load_gpt2(Model& model, const std::string& path, const Arguments& arguments) {
  const auto config = models::gpt2_config(path);
  auto* gpt = dynamic_cast<models::GPTImpl*>(model.module().get());
  if (!gpt || config.heads != arguments.heads || config.tanh_gelu != arguments.tanh_gelu)
    throw std::runtime_error(path + ": to load the GPT-2 in this folder, give --heads " + std::to_string(config.heads) +
                             (config.tanh_gelu ? " and" : ", leave out") +
                             " --tanh-gelu, and do not choose --size llama");
  models::load_gpt2(*gpt, path);
}

void load_initial_values(Model& model, const Stages* stages, const std::string& path, const Arguments& arguments) {
  const auto origin = origin_of(path);
  if (stages && origin != Origin::kCheckpoint)
    throw std::runtime_error(path +
                             ": expected a folder of checkpoints, because --init-from loads nothing else with --pipe");
  switch (origin) {
    case Origin::kGpt2Folder:
      load_gpt2(model, path, arguments);
      break;
    case Origin::kCheckpoint:
      stages ? fsdp::load_checkpoint(path, stages->pipeline()) : fsdp::load_checkpoint(path, model);
      break;
    case Origin::kFile:
      fsdp::load_safetensors(path, model);
  }
  if (fsdp::rank() == 0) std::cout << "training begins with the values of " << path << std::endl;
}

// Returns the place of a training that has done `step` steps.
fsdp::TrainingPlace place_after(int64_t step, const text::TextBatches& batches, int64_t micro_batches) {
  const int64_t steps = batches.steps_of_pass();
  return {.epoch = step / steps, .batches = step % steps * micro_batches, .step = step};
}

}  // namespace

int64_t step_at(int64_t step, int64_t then, int64_t now) { return then > 0 && now > 0 ? step * now / then : step; }

void restore(fsdp::Trainer& trainer, Model& model, const Stages* stages, torch::optim::Optimizer& optimizer,
             const text::TextBatches& batches, const Arguments& arguments) {
  const auto on_resume = [&](const fsdp::LoadedCheckpoint& loaded, fsdp::TrainingPlace& place) {
    const auto extra = nlohmann::json::parse(loaded.extra);
    const int64_t then = extra.value(kStepsOfEpoch, int64_t{0});
    place = place_after(step_at(loaded.step, then, batches.steps_of_epoch()), batches, arguments.update_freq);
    if (fsdp::rank() == 0)
      std::cout << "training goes on after step " << place.step << " from " << loaded.path << ", saved by "
                << loaded.world_size << (loaded.world_size == 1 ? " rank" : " ranks") << std::endl;
  };
  const auto on_save = [&](fsdp::SaveOptions& options) {
    options.extra = nlohmann::json{{kStepsOfEpoch, batches.steps_of_epoch()}}.dump();
  };
  trainer.add({.on_resume = on_resume, .on_save = on_save});
  if (!trainer.resume(model, optimizer) && !arguments.init_from.empty())
    load_initial_values(model, stages, arguments.init_from, arguments);
}

}  // namespace gpt
