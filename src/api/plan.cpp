#include "api/plan.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fsdp/wrap_policy.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>

#include <algorithm>
#include <unordered_set>

#include "comm/core/check.h"
#include "runtime/deferred_value.h"

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
    if (policy_.wraps) wrap_below(tree, /*is_root=*/true);
    take(tree, tree.type);
    return std::move(groups_);
  }

 private:
  // Calls `act` for the parameters of the subtree that no group has taken, each once, in the order of the tree.
  void visit_free(const ModuleNode& tree, const auto& act) const {
    std::unordered_set<const void*> seen;
    visit_nodes(tree, [&](const ModuleNode& node) {
      for (const auto& parameter : node.parameters)
        if (free_.contains(key_of(parameter)) && seen.insert(key_of(parameter)).second) act(node, parameter);
    });
  }

  // Copies no names, which are long in deep models.
  int64_t numel_below(const ModuleNode& tree) const {
    int64_t sum = 0;
    visit_free(tree, [&](const ModuleNode&, const NamedParameter& parameter) { sum += parameter.tensor.numel(); });
    return sum;
  }

  // Plans groups in the subtree, children first, as FSDP1's _recursive_wrap does. If a module already has a group, or
  // if the policy does not descend into it, the group of a module around it takes its free parameters.
  void wrap_below(const ModuleNode& node, bool is_root) {
    if (!is_root && group_at(node)) return;
    if (policy_.descends) {
      const int64_t before = numel_below(node);
      if (before == 0 || !policy_.descends({node.path, *node.module, before})) return;
    }
    for (const auto& child : node.children) wrap_below(*child, false);
    if (is_root) return;
    const int64_t numel = numel_below(node);
    if (numel > 0 && policy_.wraps({node.path, *node.module, numel})) take(node, node.path);
  }

  void take(const ModuleNode& node, const std::string& name) {
    auto& group = groups_.emplace_back(PlannedGroup{.node = &node, .name = name});
    visit_free(node, [&](const ModuleNode& owner, const NamedParameter& parameter) {
      group.parameters.push_back({parameter, {}, {}, cut_of(owner, parameter)});
    });
    for (const auto& parameter : group.parameters) free_.erase(key_of(parameter));
  }

  const AutoWrapPolicy& policy_;
  std::unordered_set<const void*> free_;  // parameters that no group has taken
  std::vector<PlannedGroup> groups_;
};

bool is_kept(const MixedPrecisionPolicy& policy, const ModuleNode& node, const NamedParameter& parameter) {
  if (policy.keeps_precision) return policy.keeps_precision(*node.module, own_name(parameter.name));
  // The operator of a module with running statistics, such as a batch norm, needs parameters of the statistics' dtype.
  // The statistics themselves are not cast, because the operator writes to them, and a write to a cast copy would be
  // lost.
  return std::ranges::any_of(node.buffers, [](const auto& buffer) { return buffer.name.ends_with("running_mean"); });
}

}  // namespace

std::vector<PlannedGroup> plan_groups(const ModuleNode& tree, const std::vector<NamedParameter>& free,
                                      const FullyShardOptions& options) {
  return Plan(free, options.auto_wrap_policy).make(tree);
}

c10::Device with_index(c10::Device device) {
  if (device.has_index() || device.is_cpu() || device.is_meta()) return device;
  return c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

c10::Device choose_device(const FullyShardOptions& options, c10::Device found, c10::Device of_ranks) {
  if (found.is_meta()) return found;  // fsdp::to_empty chooses the device later
  if (options.device) return with_index(*options.device);
  return options.offload_policy && found.is_cpu() ? of_ranks : found;
}

void require_device(c10::Device device, const std::string& where) {
  require(!device.is_meta(), where, "expected a device with memory, found meta. Name the CPU or an accelerator");
  if (device.is_cpu()) return;
  const bool is_known = c10::impl::hasDeviceGuardImpl(device.type());
  const int count = is_known ? c10::impl::getDeviceGuardImpl(device.type())->deviceCount() : 0;
  require(device.index() < count && count > 0, where, "expected a device of this process, found ", device, " (",
          c10::DeviceTypeName(device.type(), /*lower_case=*/true), " devices here: ", count,
          "). Name a different device, make the device visible to the process (CUDA_VISIBLE_DEVICES), or use a "
          "LibTorch that was built for it");
}

void set_devices(const FullyShardOptions& options, c10::Device of_ranks, std::vector<PlannedGroup>& plan,
                 std::span<const c10::Device> found) {
  size_t place = 0;
  for (auto& group : plan)
    for (auto& parameter : group.parameters) {
      const auto form = runtime::form_of_values(parameter.tensor);
      const auto device = found.empty() ? form.device : found[place++];
      parameter.form = memory::Form{form.dtype, choose_device(options, device, of_ranks)};
    }
}

void set_precision(const MixedPrecisionPolicy& policy, const ModuleNode& tree, std::vector<PlannedGroup>& plan) {
  std::unordered_set<const at::TensorImpl*> kept;
  visit_nodes(tree, [&](const ModuleNode& node) {
    for (const auto& parameter : node.parameters)
      if (is_kept(policy, node, parameter)) kept.insert(parameter.tensor.unsafeGetTensorImpl());
  });
  for (auto& group : plan)
    for (auto& parameter : group.parameters) {
      if (!parameter.tensor.is_floating_point()) continue;
      const auto own = parameter.tensor.scalar_type();
      const bool stays = kept.contains(parameter.tensor.unsafeGetTensorImpl());
      const auto whole = stays ? own : policy.param_dtype.value_or(own);
      parameter.precision = {.whole = whole,
                             .reduced = stays ? own : policy.reduce_dtype.value_or(whole),
                             .casts_operands = policy.param_dtype.has_value()};
    }
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
