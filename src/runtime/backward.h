#pragma once
/// \file
/// Where autograd calls the runtime, and when graph tasks enter groups, reduce them and leave them.

#include <ATen/core/Tensor.h>

#include "runtime/rank_state.h"

namespace torch::autograd {
struct Node;
}

namespace fsdp::runtime {

class ParamGroup;

constexpr const char* kUnfinishedBackward =
    "an earlier backward did not finish, because an exception ended it or because it runs on another thread. Call "
    "reset_iter_state() on the model on every rank, then start the iteration again";

/// The current graph task is about to use `group` of the rank: everything of its scope shows whole parameters until the
/// task ends. Returns whether it had not used it before. Throws UsageError where it may not.
///
/// Note [Entering a backward]. Two things enter: autograd before it runs a node (Note [Before a node]), and an operator
/// on a parameter (interceptor.cpp), because code may run forward again in a graph that leads to no parameter.
bool enter_backward(RankState& rank, ParamGroup& group) FSDP_REQUIRES(rank.mutex);
/// Throws UsageError if another thread runs a backward through `group`, and tells the ranks that wait for this one.
void require_no_backward_elsewhere(RankState& rank, ParamGroup& group, const char* operation) FSDP_REQUIRES(rank.mutex);
/// Whether the current graph task runs this node of its graph: in autograd::grad and backward(inputs) it may not.
bool runs_in_task(torch::autograd::Node* node);
/// A whole gradient, in a graph task that has entered the group. Starts the reductions whose turn it is.
void gradient_arrived(RankState& rank, ParamGroup& group, size_t slot, at::Tensor gradient) FSDP_REQUIRES(rank.mutex);

/// Note [Before a node]. Autograd enters a backward in two places.
/// - LibTorch's observer comes before every node. At the first one of a graph task it enters all groups that the task's
///   graph leads to: by accumulators; by the hooks of nodes that read a view or a frozen parameter, which have no edge
///   to one. What it throws is logged and dropped. If it is off, operators on parameters are refused.
/// - So a parameter has a hook before its gradient is accumulated, which throws that again and keeps `.grad` as it is,
///   and the hooks of nodes enter too. Only custom Functions, whose nodes are made after their operators ran, have
///   none.

/// Hooks the parameters of a group that was installed: before a gradient is accumulated, and with the whole gradient
/// after. The second hook owns the group, so a group lives as long as one of its parameters.
void hook_parameters(const std::shared_ptr<ParamGroup>& group);
/// Hooks a node of an operator on parameters of `group`: before it runs, parameters show their whole sizes.
void hook_node(torch::autograd::Node& node, const std::shared_ptr<ParamGroup>& group);

/// From now on, in this process, LibTorch's observer does what `hook_node` does for nodes that lead straight to a
/// parameter, while it is on (at::RecordFunctionGuard). Any thread.
void observe_backward_nodes();

/// Returns whether the node passes a gradient directly to a parameter of the group, in which case the observer, which
/// sees the node, shows whole parameters of the group.
bool leads_to(const torch::autograd::Node& node, const ParamGroup& group);

/// Forgets open graph tasks, reductions and all predictions, after an exception.
void reset_backward(RankState& rank) FSDP_REQUIRES(rank.mutex);

}  // namespace fsdp::runtime
