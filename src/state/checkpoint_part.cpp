#include "state/checkpoint_part.h"

#include <fsdp/version.h>
#include <torch/version.h>

#include <cstdio>
#include <utility>

#include "comm/core/check.h"
#include "runtime/compat.h"
#include "runtime/param_group.h"
#include "runtime/registry.h"
#include "state/format/host_name.h"
#include "state/optimizer_state.h"
#include "state/random_state.h"
#include "state/scaler_state.h"

namespace fsdp::state {
namespace {

std::string stem_of_file(const char* section, const CheckpointPart& part) {
  char name[80];
  std::snprintf(name, sizeof name, "%s-%05d-of-%05d", section, part.rank, static_cast<int>(part.manifest.world_size));
  return name;
}

void require_random_states(const ModelTensors& tensors, const SaveOptions& options) {
  for (const auto& [name, state] : options.random_states) {
    const auto in = "SaveOptions::random_states['" + name + "']: ";
    require(
        state.defined() && state.dim() == 1 && state.is_cpu(), in,
        "expected a CPU tensor of one dimension, such as at::Generator::get_state() returns, found ",
        state.defined() ? std::to_string(state.dim()) + " dimensions on " + state.device().str()
                        : "an undefined tensor");
    for (const auto& device : devices_of(tensors))
      require(name != name_of(device), in, "the state of the default generator is saved under this name. ",
              "Choose a different name");
  }
}

std::vector<RowsToWrite> training_rows(const ModelTensors& tensors, const torch::optim::Optimizer* optimizer) {
  std::vector<RowsToWrite> list;
  if (!optimizer) return list;
  for (const auto& [place, field, values] : state::tensors_of(*optimizer, tensors)) {
    const auto& parameter = tensors.all[place];
    list.push_back(with_whole_rows({parameter, name_of_state(parameter.name(), field), values}));
  }
  return list;
}

}  // namespace

void require_savable(const ModelTensors& tensors, const torch::optim::Optimizer* optimizer, const SaveOptions& options,
                     const std::string& where) {
  require(options.step >= 0, where, "expected SaveOptions::step of at least 0, found ", options.step);
  require(!options.keep || *options.keep > 0, where, "expected SaveOptions::keep of at least 1, found ",
          options.keep.value_or(0));
  if (optimizer) require_known(*optimizer, tensors, where);
  if (tensors.are_of_stages) return;
  for (const auto& tensor : tensors.all)
    if (const auto part = runtime::registry().find(tensor.tensor))
      require(!part->group->placement().pipe_axis, where, "'", tensor.name(),
              "' belongs to a stage of a pipeline, and the stages are saved together. Pass the fsdp::Pipeline");
}

CheckpointPart part_of(const ModelTensors& tensors, const torch::optim::Optimizer* optimizer,
                       const SaveOptions& options, const Ranks& ranks) {
  CheckpointPart part{.rank = ranks.rank(),
                      .manifest = {.step = options.step,
                                   .world_size = ranks.world_size(),
                                   .versions = {{"fsdp", FSDP_VERSION}, {"torch", TORCH_VERSION}}}};
  for (const auto& tensor : tensors.all)
    part.model.push_back(with_whole_rows({tensor, tensor.name(), tensor.tensor.detach()}));
  part.training = training_rows(tensors, optimizer);
  if (optimizer) part.manifest.optimizer = numbers_of(*optimizer, tensors);
  if (ranks.rank() == 0) {
    part.manifest.extra = options.extra;
    part.manifest.states = options.states;
    if (options.scaler && options.scaler->is_enabled()) part.manifest.states[kScaler] = state_of(*options.scaler);
  }
  return part;
}

void add_random_states(CheckpointPart& part, const ModelTensors& tensors, const SaveOptions& options) {
  require_random_states(tensors, options);
  const auto add = [&](const std::string& name, const at::Tensor& state) {
    const layout::RowRange all{0, state.numel()};
    part.training.push_back({{state.sizes().vec(), 1, all, all}, name_of_random(part.rank, name), state});
  };
  for (const auto& device : devices_of(tensors)) add(name_of(device), random_state(device));
  for (const auto& [name, state] : options.random_states) add(name, state);
}

CheckpointPart copied(CheckpointPart part) {
  const runtime::OwnOperators own_operators;
  for (auto* list : {&part.model, &part.training})
    for (auto& rows : *list) {
      auto values = on_cpu(rows.values, rows.share.first - rows.rows.first, rows.share.count);
      rows.values = values.is_alias_of(rows.values) ? values.clone() : std::move(values);
      rows.rows = rows.share;
    }
  return part;
}

std::string write(const std::string& folder, CheckpointPart part) {
  auto& manifest = part.manifest;
  write_rows(folder, stem_of_file("model", part), part.model, manifest, manifest.model);
  write_rows(folder, stem_of_file("training", part), part.training, manifest, manifest.training);
  for (auto& [name, file] : manifest.files) file.host = host_name();
  return manifest_text(std::move(manifest));
}

std::string whose_part(int rank) { return str_cat("rank ", rank, "'s part"); }

}  // namespace fsdp::state
