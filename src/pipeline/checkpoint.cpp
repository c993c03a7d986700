#include "state/checkpoint.h"

#include <fsdp/pipeline.h>

#include "pipeline/run.h"

namespace fsdp {
namespace {

state::ModelTensors tensors_of(const Pipeline& pipeline, const char* operation) {
  const auto& plan = pipeline::Plan::of(pipeline);
  std::map<int, std::shared_ptr<const ModuleNode>> trees;
  for (int stage = plan.group->rank(); stage < plan.schedule.stages(); stage += plan.schedule.ranks)
    if (auto tree = pipeline::tree_of(plan.stage(stage))) trees.emplace(stage, std::move(tree));
  return state::tensors_of(trees, operation);
}

}  // namespace

void save_checkpoint(const std::string& folder, const Pipeline& pipeline, const torch::optim::Optimizer* optimizer,
                     const SaveOptions& options) {
  state::save(folder, tensors_of(pipeline, state::kSave), optimizer, options);
}
void async_save_checkpoint(AsyncSave& saving, const std::string& folder, const Pipeline& pipeline,
                           const torch::optim::Optimizer* optimizer, const SaveOptions& options) {
  state::async_save(saving, folder, tensors_of(pipeline, state::kAsyncSave), optimizer, options);
}
LoadedCheckpoint load_checkpoint(const std::string& folder, const Pipeline& pipeline,
                                 torch::optim::Optimizer* optimizer, const LoadOptions& options) {
  return state::load(folder, tensors_of(pipeline, state::kLoad), optimizer, options);
}

}  // namespace fsdp
