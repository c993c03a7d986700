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

// Rank 0 looks, so that all ranks do the same.
bool begins_anew(const Arguments& arguments) {
  if (arguments.resume.empty()) return true;
  const bool may_be_first = arguments.resume == arguments.save;
  const bool is_first = may_be_first && fsdp::rank() == 0 && !fs::exists(fs::path(arguments.resume) / "latest");
  return fsdp::broadcast(torch::tensor(static_cast<int64_t>(is_first))).item<int64_t>() != 0;
}

// A GPT-2 that transformers saved. The sizes of its tensors do not tell all that the model has to be.
void load_gpt2(Model& model, const std::string& path, const Arguments& arguments) {
  const auto config = models::gpt2_config(path);
  auto* gpt = dynamic_cast<models::GPTImpl*>(model.module().get());
  if (!gpt || config.heads != arguments.heads || config.tanh_gelu != arguments.tanh_gelu)
    throw std::runtime_error(path + ": expected the flags of its model: --heads " + std::to_string(config.heads) +
                             (config.tanh_gelu ? " with" : " without") + " --tanh-gelu and not --size llama");
  models::load_gpt2(*gpt, path);
}

void load_initial_values(Model& model, const std::string& path, const Arguments& arguments) {
  if (fs::exists(fs::path(path) / "config.json"))
    load_gpt2(model, path, arguments);
  else if (fs::is_directory(path))
    fsdp::load_checkpoint(path, model);
  else
    fsdp::load_safetensors(path, model);
  if (fsdp::rank() == 0) std::cout << "begins with the values of " << path << std::endl;
}

}  // namespace

int64_t step_at(int64_t step, int64_t then, int64_t now) { return then > 0 && now > 0 ? step * now / then : step; }

int64_t restore(Model& model, fsdp::optim::AdamW& optimizer, const fsdp::data::TextBatches& batches,
                const Arguments& arguments) {
  if (begins_anew(arguments)) {
    if (!arguments.init_from.empty()) load_initial_values(model, arguments.init_from, arguments);
    return 0;
  }
  const auto loaded = fsdp::load_checkpoint(arguments.resume, model, &optimizer);
  const auto extra = nlohmann::json::parse(loaded.extra);
  const int64_t step = step_at(loaded.step, extra.value(kStepsOfEpoch, int64_t{0}), batches.steps_of_epoch());
  if (fsdp::rank() == 0)
    std::cout << "goes on after step " << step << " from " << loaded.path << ", saved by " << loaded.world_size
              << (loaded.world_size == 1 ? " rank" : " ranks") << std::endl;
  return step;
}

bool saves_after(int64_t done, int64_t steps, const Arguments& arguments) {
  if (arguments.save.empty()) return false;
  return done == steps || (arguments.save_every > 0 && done % arguments.save_every == 0);
}

std::string save(const Model& model, const fsdp::optim::AdamW& optimizer, const fsdp::data::TextBatches& batches,
                 int64_t done, const Arguments& arguments) {
  const nlohmann::json extra = {{kStepsOfEpoch, batches.steps_of_epoch()}};
  fsdp::save_checkpoint(arguments.save, model, &optimizer,
                        {.step = done, .extra = extra.dump(), .keep = arguments.keep});
  return "step " + std::to_string(done) + ": saved in " + arguments.save;
}

}  // namespace gpt
