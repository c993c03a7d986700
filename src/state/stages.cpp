#include "state/stages.h"

#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "comm/core/check.h"

namespace fsdp::state {
namespace {

using json = nlohmann::json;

// Returns the index of the optimizer's parameter group for each tensor, or nullopt if the optimizer lacks the tensor.
std::vector<std::optional<size_t>> groups_of(const ModelTensors& tensors, const torch::optim::Optimizer* optimizer) {
  std::vector<std::optional<size_t>> groups(tensors.all.size());
  if (optimizer)
    for (size_t group = 0; group < optimizer->param_groups().size(); ++group)
      for (const auto& parameter : optimizer->param_groups()[group].params())
        groups[tensors.places.at(parameter.unsafeGetTensorImpl())] = group;
  return groups;
}

// The rows that a rank would write: the tensor's name, the rank on the tensor axis, the first row and the number of
// rows. Ranks with equal shares have the same rows.
using Share = std::tuple<std::string, int, int64_t, int64_t>;

Share share_of(const ModelTensor& tensor) {
  return {tensor.name(), tensor.cut ? tensor.cut->axis->rank() : 0, tensor.share.first, tensor.share.count};
}

json description(const ModelTensors& tensors, const torch::optim::Optimizer* optimizer) {
  const auto groups = groups_of(tensors, optimizer);
  json list = json::array();
  for (size_t i = 0; i < tensors.all.size(); ++i) {
    const auto& tensor = tensors.all[i];
    list.push_back({{"names", tensor.names},
                    {"stage", tensor.stage},
                    {"share", share_of(tensor)},
                    {"group", groups[i] ? json(*groups[i]) : json()}});
  }
  return {{"groups", optimizer ? optimizer->param_groups().size() : 0}, {"tensors", std::move(list)}};
}

}  // namespace

void join_stages(ModelTensors& tensors, const torch::optim::Optimizer* optimizer, const Ranks& ranks) {
  if (!tensors.are_of_stages) return;
  const auto texts = ranks.together([&] { return description(tensors, optimizer).dump(); });
  std::map<std::string, int> stage_of;
  std::set<Share> written_before;  // the shares that lower ranks write
  std::optional<size_t> param_groups;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const auto of_rank = json::parse(texts[rank]);
    const auto groups = of_rank["groups"].get<size_t>();
    require(groups == param_groups.value_or(groups), ranks.where(), "rank ", rank, "'s optimizer has ", groups,
            " parameter groups, but rank 0's has ", param_groups.value_or(0),
            ". Give each rank an optimizer with the same number of groups, some of which can be empty");
    param_groups = groups;
    for (const auto& tensor : of_rank["tensors"]) {
      const auto stage = tensor["stage"].get<int>();
      const auto& group = tensor["group"];
      for (const auto& name : tensor["names"].get<std::vector<std::string>>()) {
        const auto [known, is_new] = stage_of.try_emplace(name, stage);
        require(known->second == stage, ranks.where(), "stages ", known->second, " and ", stage,
                " have different tensors that are both called '", name,
                "'. Register the layers of a stage by the names that they have in the "
                "whole model, as fsdp::split_stages does");
        if (is_new) tensors.elsewhere.emplace(name, std::nullopt);
      }
      const auto share = tensor["share"].get<Share>();
      if (!group.is_null()) tensors.elsewhere[std::get<0>(share)] = group.get<size_t>();
      if (static_cast<int>(rank) < ranks.rank()) written_before.insert(share);
    }
  }
  for (auto& tensor : tensors.all) {
    for (const auto& name : tensor.names) tensors.elsewhere.erase(name);
    if (written_before.contains(share_of(tensor))) tensor.share.count = 0;
  }
}

}  // namespace fsdp::state
