#include "api/precision.h"

#include <algorithm>
#include <unordered_set>

#include "comm/core/check.h"

namespace fsdp {
namespace {

using runtime::NamedParameter;

void check_dtype(const std::optional<at::ScalarType>& dtype, const char* field, const std::string& where) {
  require(!dtype || can_be_summed(*dtype), where, "MixedPrecisionPolicy::", field,
          ": expected Half, BFloat16, Float or Double, in which ranks can sum and operators compute, found ",
          dtype.value_or(at::kFloat));
}

// Their operators want parameters of the statistics' dtype, and those are not cast, which would lose what is written.
bool has_running_statistics(const ModuleNode& node) {
  return std::ranges::any_of(node.buffers, [](const auto& buffer) { return buffer.name.ends_with("running_mean"); });
}

bool is_kept(const MixedPrecisionPolicy& policy, const ModuleNode& node, const NamedParameter& parameter) {
  if (!policy.keeps_precision) return has_running_statistics(node);
  return policy.keeps_precision(*node.module, parameter.name.substr(node.path.empty() ? 0 : node.path.size() + 1));
}

}  // namespace

bool can_be_summed(at::ScalarType dtype) {
  constexpr at::ScalarType kSummed[]{at::kHalf, at::kBFloat16, at::kFloat, at::kDouble};
  return std::ranges::find(kSummed, dtype) != std::end(kSummed);
}

void check_precision(const MixedPrecisionPolicy& policy, const ModuleNode& tree, const std::string& where) {
  check_dtype(policy.param_dtype, "param_dtype", where);
  check_dtype(policy.reduce_dtype, "reduce_dtype", where);
  check_dtype(policy.output_dtype, "output_dtype", where);
  if (!policy.keeps_precision) return;
  require(
      policy.param_dtype || policy.reduce_dtype, where,
      "MixedPrecisionPolicy::keeps_precision says what stays as it is, but nothing else changes. Set param_dtype or "
      "reduce_dtype");
  visit_nodes(tree, [&](const ModuleNode& node) {
    require(node.module != nullptr || node.parameters.empty(), where,
            "MixedPrecisionPolicy::keeps_precision is asked with torch::nn modules, found ", node.type,
            ". Leave it unset, or shard what is to stay as it is by a call of its own without a policy");
  });
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

}  // namespace fsdp
