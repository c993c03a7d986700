#pragma once
/// \file
/// Policies that decide which submodules become groups.

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup sharding
/// \{

/// Submodule that may become a group.
struct WrapCandidate {
  /// Path of the submodule below the sharded module, e.g. "blocks.3".
  std::string name;
  /// The submodule.
  torch::nn::Module& module;
  /// Number of elements of the submodule's parameters that no group inside the submodule has taken.
  int64_t unwrapped_numel = 0;
};

/// Policy that decides which submodules become groups. fully_shard considers children before their parents, and the
/// outermost module is always a group. Decisions must be the same on every rank. With an empty policy no submodule
/// becomes a group.
///
///     options.auto_wrap_policy = [](const fsdp::WrapCandidate& c) { return c.name.ends_with("mlp"); };
struct AutoWrapPolicy {
  /// Function that answers a question about a submodule; see `wraps` and `descends`.
  using Decision = std::function<bool(const WrapCandidate&)>;

  /// Makes an empty policy.
  AutoWrapPolicy() = default;
  /// Makes a policy from a function that returns true for each candidate that becomes a group.
  template <class F>
    requires std::is_invocable_r_v<bool, F, const WrapCandidate&>
  AutoWrapPolicy(F decide) : wraps(std::move(decide)) {}  // NOLINT(google-explicit-constructor)
  /// Makes a policy from two functions: `wrap` becomes `wraps`, and `descend` becomes `descends`.
  AutoWrapPolicy(Decision wrap, Decision descend) : wraps(std::move(wrap)), descends(std::move(descend)) {}

  /// Function that returns true if a module becomes a group.
  Decision wraps;
  /// Function that returns true if a module's children are considered; if empty, they always are.
  Decision descends;
};

/// Returns a policy that makes each module of one of the types a group. Pass the types of modules (`BlockImpl`), not of
/// their holders.
///
///     options.auto_wrap_policy = fsdp::module_wrap_policy<BlockImpl>();
template <class... Modules>
AutoWrapPolicy module_wrap_policy() {
  return [](const WrapCandidate& candidate) {
    return ((dynamic_cast<const Modules*>(&candidate.module) != nullptr) || ...);
  };
}

/// Returns a policy that makes a module a group if its subtree has at least `min_numel` elements that no group inside
/// it has taken; smaller modules stay in their parent's group. As in FSDP1, ModuleList and ModuleDict never become
/// groups, and MultiheadAttention is not split up (torch.distributed.fsdp.wrap.size_based_auto_wrap_policy).
///
///     options.auto_wrap_policy = fsdp::size_based_auto_wrap_policy(100'000'000);
AutoWrapPolicy size_based_auto_wrap_policy(int64_t min_numel);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
