#include <fsdp/pipeline.h>

#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "api/group_view.h"
#include "optim/clip_grad.h"
#include "pipeline/run.h"
#include "runtime/registry.h"
#include "state/checkpoint.h"

namespace fsdp {
namespace {

using pipeline::Plan;
using pipeline::trees_of;

optim::MeasuredModel measured(const Pipeline& pipeline) {
  const auto& plan = Plan::of(pipeline);
  optim::MeasuredModel model{"all stages of a pipeline", *plan.group, {}, plan.group.get()};
  for (const auto& [stage, tree] : trees_of(plan)) {
    const bool is_sharded = plan.stage(stage).group().has_value();
    const ProcessGroup* tensor_axis = nullptr;
    std::unordered_set<const at::TensorImpl*> cut;
    visit_nodes(*tree, [&](const ModuleNode& node) {
      for (const auto& parameter : node.parameters)
        if (const auto found = cut_of(node, parameter)) {
          tensor_axis = found->axis.get();
          cut.insert(parameter.tensor.unsafeGetTensorImpl());
        }
    });
    for (const auto& [name, parameter] : subtree_parameters(*tree))
      if (!is_sharded || runtime::registry().find(parameter))
        model.parameters.push_back({parameter, tensor_axis, cut.contains(parameter.unsafeGetTensorImpl())});
  }
  return model;
}

state::ModelTensors tensors_of(const Pipeline& pipeline, const char* operation) {
  return state::tensors_of(trees_of(Plan::of(pipeline)), operation);
}

}  // namespace

double clip_grad_norm_(const Pipeline& pipeline, double max_norm, double norm_type, bool error_if_nonfinite) {
  return optim::clip_grad_norm_(measured(pipeline), max_norm, norm_type, error_if_nonfinite);
}

double get_total_norm(const Pipeline& pipeline, double norm_type, bool error_if_nonfinite) {
  return optim::get_total_norm(measured(pipeline), norm_type, error_if_nonfinite);
}

double norm(const Pipeline& pipeline, double p) { return optim::norm(measured(pipeline), p); }

std::vector<at::Tensor> Pipeline::parameters() const {
  std::vector<at::Tensor> parameters;
  for (const auto& [stage, tree] : trees_of(*plan_))
    for (auto& parameter : subtree_parameters(*tree)) parameters.push_back(std::move(parameter.tensor));
  return parameters;
}

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
