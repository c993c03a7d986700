#include "api/plan.h"

#include <fsdp/wrap_policy.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>

#include <algorithm>
#include <iterator>
#include <unordered_set>

namespace fsdp {
namespace {

using runtime::NamedParameter;

const void* key_of(const NamedParameter& parameter) { return parameter.tensor.unsafeGetTensorImpl(); }

class Plan {
 public:
  Plan(const std::vector<NamedParameter>& free, const AutoWrapPolicy& policy) : policy_(policy) {
    for (const auto& parameter : free) free_.insert(key_of(parameter));
  }

  std::vector<PlannedGroup> make(const ModuleNode& tree) {
    take(tree, tree.type, policy_.wraps ? wrap_below(tree, /*is_root=*/true) : free_below(tree));
    return std::move(groups_);
  }

 private:
  // Where a module has a parameter: a tied one has several places.
  struct Place {
    const ModuleNode* node;
    const NamedParameter* parameter;
  };
  using Places = std::vector<Place>;

  // The free parameters of the subtree, in the order of the tree.
  Places free_below(const ModuleNode& tree) const {
    Places places;
    visit_nodes(tree, [&](const ModuleNode& node) {
      for (const auto& parameter : node.parameters)
        if (free_.contains(key_of(parameter))) places.push_back({&node, &parameter});
    });
    return places;
  }

  // Of the different parameters that are free.
  int64_t numel_of(const Places& places) const {
    int64_t sum = 0;
    std::unordered_set<const void*> seen;
    for (const auto& [node, parameter] : places)
      if (free_.contains(key_of(*parameter)) && seen.insert(key_of(*parameter)).second)
        sum += parameter->tensor.numel();
    return sum;
  }

  // Children first (FSDP1's _recursive_wrap). Returns what no group has taken: all of a module that is a group already,
  // or that the policy does not descend into.
  Places wrap_below(const ModuleNode& node, bool is_root) {
    auto all = free_below(node);
    const int64_t before = numel_of(all);
    const bool is_asked = (is_root || !group_at(node)) && before > 0;
    if (!is_asked || (policy_.descends && !policy_.descends({node.path, *node.module, before}))) return all;
    Places left(all.begin(), std::ranges::find_if(all, [&](const Place& place) { return place.node != &node; }));
    for (const auto& child : node.children) std::ranges::copy(wrap_below(*child, false), std::back_inserter(left));
    const int64_t numel = numel_of(left);
    if (is_root || numel == 0 || !policy_.wraps({node.path, *node.module, numel})) return left;
    take(node, node.path, left);
    return {};
  }

  void take(const ModuleNode& node, const std::string& name, const Places& places) {
    PlannedGroup group{.node = &node, .name = name};
    std::unordered_set<const void*> taken;
    for (const auto& [owner, parameter] : places) {
      if (free_.erase(key_of(*parameter)) > 0) {
        taken.insert(key_of(*parameter));
        group.parameters.push_back({*parameter});
        group.parameters.back().cut = cut_of(*owner, *parameter);
      }
      if (taken.contains(key_of(*parameter)) && (group.modules.empty() || group.modules.back() != owner->identity))
        group.modules.push_back(owner->identity);
    }
    groups_.push_back(std::move(group));
  }

  const AutoWrapPolicy& policy_;
  std::unordered_set<const void*> free_;  // that no group has taken
  std::vector<PlannedGroup> groups_;
};

}  // namespace

std::vector<PlannedGroup> plan_groups(const ModuleNode& tree, const std::vector<NamedParameter>& free,
                                      const FullyShardOptions& options) {
  return Plan(free, options.auto_wrap_policy).make(tree);
}

int64_t expected_bytes(const PlannedGroup& group, int ranks) {
  int64_t bytes = 0;
  for (const auto& parameter : group.parameters)
    bytes += static_cast<int64_t>(parameter.tensor.nbytes()) * (parameter.tensor.requires_grad() ? 4 : 1);
  return (bytes + ranks - 1) / ranks;
}

std::vector<bool> choose_on_disk(std::span<const int64_t> bytes, int64_t taken, int64_t limit) {
  std::vector<bool> is_on_disk;
  for (const int64_t wanted : bytes) {
    is_on_disk.push_back(wanted > limit - taken);
    if (!is_on_disk.back()) taken += wanted;
  }
  return is_on_disk;
}

AutoWrapPolicy size_based_auto_wrap_policy(int64_t min_numel) {
  auto wraps = [min_numel](const WrapCandidate& candidate) {
    bool is_container = dynamic_cast<torch::nn::ModuleListImpl*>(&candidate.module) != nullptr ||
                        dynamic_cast<torch::nn::ModuleDictImpl*>(&candidate.module) != nullptr;
    return candidate.unwrapped_numel >= min_numel && !is_container;
  };
  auto descends = [](const WrapCandidate& candidate) {
    return dynamic_cast<torch::nn::MultiheadAttentionImpl*>(&candidate.module) == nullptr;
  };
  return {AutoWrapPolicy::Decision(wraps), AutoWrapPolicy::Decision(descends)};
}

}  // namespace fsdp
