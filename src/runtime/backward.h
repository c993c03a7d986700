#pragma once
/// \file
/// Hooks by which autograd calls the runtime, and the functions that let a graph task enter groups, reduce their
/// gradients and leave them.

#include <torch/csrc/autograd/function.h>

#include "runtime/param_group.h"

namespace fsdp::runtime {

constexpr const char* kUnfinishedBackward =
    "an earlier backward did not finish: an exception ended it, or it still runs on another thread. Call "
    "reset_iter_state() on the model on every rank, then start the iteration again";

/// Lets the current graph task enter `group` before it uses the group: all groups of the group's scope then show whole
/// parameters until the task ends. Returns false if the task had already entered the group. Throws UsageError if the
/// task may not enter it now.
///
/// Note [Entering a backward]. There are two callers: autograd before it runs a node (Note [Before a node]), and the
/// interceptor before it runs an operator on a parameter. The interceptor is needed because a node that leads to no
/// parameter may run forward again.
bool enter_backward(RankState& rank, ParamGroup& group) FSDP_REQUIRES(rank.mutex);
/// Throws UsageError if another thread runs a backward through `group`. Before it throws, it reports the failure to the
/// ranks that may wait for this one.
void require_no_backward_elsewhere(RankState& rank, ParamGroup& group, const char* operation) FSDP_REQUIRES(rank.mutex);
/// Takes the whole gradient of a slot from a graph task that has entered the group, and starts to reduce the buckets
/// that are complete and next in order.
void gradient_arrived(RankState& rank, ParamGroup& group, size_t slot, at::Tensor gradient) FSDP_REQUIRES(rank.mutex);

/// Note [Before a node]. Autograd calls `enter_backward` in two places.
/// - A callback of at::RecordFunction runs before every node. At the first node of a graph task it enters all groups
///   that the task's graph leads to. It finds them by gradient accumulators, and by the hooks (`hook_node`) of nodes
///   that read a view or a frozen parameter and therefore have no edge to an accumulator. LibTorch logs and drops what
///   such callbacks throw. Users can turn callbacks off; in backward, operators on parameters are then refused.
/// - Hooks therefore call it too: those of nodes, and one that runs before a parameter's gradient is accumulated. The
///   latter throws the error that LibTorch dropped, and `.grad` stays as it is. Only nodes of custom Functions have no
///   hook, because LibTorch makes such a node after the operators inside it have run.

/// Gives each parameter of an installed group two hooks: one runs before a gradient is accumulated, the other gets the
/// whole gradient afterwards. The hooks own the group, so a group lives as long as any of its parameters.
void hook_parameters(const std::shared_ptr<ParamGroup>& group);
/// Gives a node that reads parameters of `group` a hook that calls `enter_backward` before the node runs.
void hook_node(torch::autograd::Node& node, const std::shared_ptr<ParamGroup>& group);

/// Registers the callback of Note [Before a node], once per process. While LibTorch's observers are on
/// (at::RecordFunctionGuard), nodes that have an edge to a parameter's accumulator need no `hook_node`. Any thread may
/// call this function.
void observe_backward_nodes();

/// Returns true if the node has an edge to the accumulator of a parameter of the group. The observer then needs no hook
/// on the node to enter the group.
bool leads_to(const torch::autograd::Node& node, const ParamGroup& group);

/// Forgets open graph tasks, the order of reductions in flight and all predictions of reads, after an exception.
void reset_backward(RankState& rank) FSDP_REQUIRES(rank.mutex);

}  // namespace fsdp::runtime
