#include <fsdp/state_dict.h>

#include "api/group_view.h"
#include "api/rows.h"
#include "state/optimizer_state.h"
#include "state/ranks.h"

namespace fsdp {
namespace {

std::vector<StateEntry> rows_of_model(const ModuleNode& tree) {
  std::vector<StateEntry> entries;
  for (const auto& tensor : state::tensors_of(tree, "state_dict").all)
    entries.push_back({tensor.name(), tensor.sizes, tensor.rows.first, tensor.tensor.detach()});
  return entries;
}

std::vector<StateEntry> rows_of_optimizer(const torch::optim::Optimizer& optimizer, const ModuleNode& tree) {
  const auto tensors = state::tensors_of(tree, "state_dict");
  state::require_known(optimizer, tensors, state::Ranks(tensors.ranks, "state_dict").where());
  std::vector<StateEntry> entries;
  for (const auto& [place, field, values] : state::tensors_of(optimizer, tensors)) {
    const auto& parameter = tensors.all[place];
    entries.push_back({state::name_of_state(parameter.name(), field), parameter.sizes, parameter.rows.first, values});
  }
  return entries;
}

std::vector<std::pair<std::string, at::Tensor>> whole_on_first_rank(const ModuleNode& tree) {
  std::vector<std::pair<std::string, at::Tensor>> entries;
  const std::string call = "full_state_dict";
  const auto tensors = state::tensors_of(tree, call);
  const bool is_first = state::Ranks(tensors.ranks, call).rank() == 0;
  for (const auto& tensor : tensors.all) {
    const auto whole = gather_whole(tensor.tensor, call);
    if (is_first) entries.emplace_back(tensor.name(), whole.cpu());
  }
  return entries;
}

}  // namespace

std::vector<StateEntry> state_dict(const Group& model) { return rows_of_model(*GroupView::of(model).tree); }
std::vector<StateEntry> state_dict(torch::nn::Module& model) { return rows_of_model(*module_tree(model)); }
std::vector<StateEntry> state_dict(const torch::optim::Optimizer& optimizer, const Group& model) {
  return rows_of_optimizer(optimizer, *GroupView::of(model).tree);
}
std::vector<StateEntry> state_dict(const torch::optim::Optimizer& optimizer, torch::nn::Module& model) {
  return rows_of_optimizer(optimizer, *module_tree(model));
}

std::vector<std::pair<std::string, at::Tensor>> full_state_dict(const Group& model) {
  return whole_on_first_rank(*GroupView::of(model).tree);
}
std::vector<std::pair<std::string, at::Tensor>> full_state_dict(torch::nn::Module& model) {
  return whole_on_first_rank(*module_tree(model));
}

}  // namespace fsdp
