#pragma once
/// \file
/// Which submodules become groups of their own.

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup sharding
/// \{

/// A submodule that may become a group.
struct WrapCandidate {
  /// Its path below the module that is sharded, e.g. "blocks.3".
  std::string name;
  /// The submodule itself.
  torch::nn::Module& module;
  /// Elements of its parameters that no group inside it has taken.
  int64_t unwrapped_numel = 0;
};

/// A decision about submodules. Children are asked before their parents; the outermost module is a group in any case.
/// Decisions must be the same on every rank. An empty policy wraps nothing.
///
///     options.auto_wrap_policy = [](const fsdp::WrapCandidate& c) { return c.name.ends_with("mlp"); };
struct AutoWrapPolicy {
  /// Answers yes or no for a submodule.
  using Decision = std::function<bool(const WrapCandidate&)>;

  /// Wraps nothing.
  AutoWrapPolicy() = default;
  /// From any function that says whether a candidate becomes a group.
  template <class F>
    requires std::is_invocable_r_v<bool, F, const WrapCandidate&>
  AutoWrapPolicy(F decide) : wraps(std::move(decide)) {}  // NOLINT(google-explicit-constructor)
  /// From two functions, see `wraps` and `descends`. `descend` without `wrap` is a UsageError of fully_shard.
  AutoWrapPolicy(Decision wrap, Decision descend) : wraps(std::move(wrap)), descends(std::move(descend)) {}

  /// Whether a module becomes a group.
  Decision wraps;
  /// Whether the children of a module are looked at; empty: always.
  Decision descends;
};

/// Each module of one of the types becomes a group. The types are those of modules, not of their holders.
///
///     options.auto_wrap_policy = fsdp::module_wrap_policy<BlockImpl>();
template <class... Modules>
AutoWrapPolicy module_wrap_policy() {
  return [](const WrapCandidate& candidate) {
    return ((dynamic_cast<const Modules*>(&candidate.module) != nullptr) || ...);
  };
}

/// A module whose subtree has at least `min_numel` elements not taken by groups inside it becomes a group; smaller ones
/// stay with their parent. As in FSDP1, ModuleList and ModuleDict never become groups and MultiheadAttention is not
/// divided (torch.distributed.fsdp.wrap.size_based_auto_wrap_policy).
///
///     options.auto_wrap_policy = fsdp::size_based_auto_wrap_policy(100'000'000);
AutoWrapPolicy size_based_auto_wrap_policy(int64_t min_numel);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
