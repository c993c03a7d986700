#include <fsdp/checkpoint.h>
#include <torch/version.h>

#include <cstdio>

#include "api/group_view.h"
#include "comm/core/check.h"
#include "state/format/checkpoint_folder.h"
#include "state/optimizer_state.h"
#include "state/random_state.h"
#include "state/ranks.h"
#include "state/rows_file.h"

namespace fsdp {
namespace {

using namespace state;

std::string name_of_file(const char* section, const Ranks& ranks) {
  char name[80];
  std::snprintf(name, sizeof name, "%s-%05d-of-%05d.safetensors", section, ranks.rank(), ranks.world_size());
  return name;
}

std::vector<RowsToWrite> training_rows(const ModelTensors& tensors, const torch::optim::Optimizer* optimizer,
                                       const Ranks& ranks) {
  std::vector<RowsToWrite> list;
  if (optimizer)
    for (const auto& [place, field, values] : state::tensors_of(*optimizer, tensors)) {
      const auto& parameter = tensors.all[place];
      list.push_back(
          {name_of_state(parameter.name(), field), values, parameter.sizes, parameter.rows, parameter.share});
    }
  for (const auto& device : devices_of(tensors)) {
    const auto random = random_state(device);
    const layout::RowRange all{0, random.numel()};
    list.push_back({name_of_random(ranks.rank(), device), random, random.sizes().vec(), all, all});
  }
  return list;
}

// Writes this rank's files.
Manifest write_part(const std::string& folder, const ModelTensors& tensors, const torch::optim::Optimizer* optimizer,
                    const SaveOptions& options, const Ranks& ranks) {
  Manifest manifest{.step = options.step,
                    .world_size = ranks.world_size(),
                    .versions = {{"fsdp", FSDP_VERSION}, {"torch", TORCH_VERSION}}};
  std::vector<RowsToWrite> model;
  for (const auto& tensor : tensors.all)
    model.push_back({tensor.name(), tensor.tensor.detach(), tensor.sizes, tensor.rows, tensor.share});
  write_rows(folder, name_of_file("model", ranks), model, manifest, manifest.model);
  write_rows(folder, name_of_file("training", ranks), training_rows(tensors, optimizer, ranks), manifest,
             manifest.training);
  if (optimizer) manifest.optimizer = numbers_of(*optimizer, tensors);
  if (ranks.rank() == 0) manifest.extra = options.extra;
  return manifest;
}

Manifest join(const std::vector<std::string>& parts) {
  auto all = parse_manifest_part(parts.front(), "rank 0's part");
  for (size_t r = 1; r < parts.size(); ++r)
    add_part(all, parse_manifest_part(parts[r], c10::str("rank ", r, "'s part")));
  return all;
}

void save(const std::string& folder, const ModuleNode& tree, const torch::optim::Optimizer* optimizer,
          const SaveOptions& options) {
  const std::string operation = "save_checkpoint";
  const auto tensors = state::tensors_of(tree, operation);
  const Ranks ranks(tensors.ranks);
  require(options.step >= 0, ranks.where(operation), "expected a step of 0 or more, found ", options.step);
  require(!options.keep || *options.keep > 0, ranks.where(operation), "expected to keep 1 checkpoint or more, found ",
          options.keep.value_or(0));
  if (optimizer) require_known(*optimizer, tensors, ranks.where(operation));
  std::optional<FolderLock> lock;
  const bool is_first = ranks.rank() == 0;
  const auto partial = ranks.together(operation, [&]() -> std::string {
    if (!is_first) return {};
    lock.emplace(folder);
    return begin_step(folder, options.step, *lock);
  })[0];
  try {
    const auto parts = ranks.together(
        operation, [&] { return manifest_text(write_part(partial, tensors, optimizer, options, ranks)); });
    ranks.together(operation, [&]() -> std::string {
      if (is_first) complete_step(folder, join(parts), options.keep, *lock);
      return {};
    });
  } catch (...) {
    if (lock) abandon_step(folder, options.step, *lock);
    throw;
  }
}

}  // namespace

void save_checkpoint(const std::string& folder, const Group& model, const torch::optim::Optimizer* optimizer,
                     const SaveOptions& options) {
  save(folder, *GroupView::of(model).tree, optimizer, options);
}
void save_checkpoint(const std::string& folder, torch::nn::Module& model, const torch::optim::Optimizer* optimizer,
                     const SaveOptions& options) {
  save(folder, *module_tree(model), optimizer, options);
}

}  // namespace fsdp
