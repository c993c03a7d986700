#pragma once
/// \file
/// Where autograd calls the runtime.
///
/// Note [Before a node]. A node that reads parameters begins with `begin_node`, the one function by which autograd
/// enters a backward. Who calls it is not a choice. LibTorch's observer comes before every node, so it knows the first
/// one of a graph task, and nodes by their edges to parameters, which costs no hook; but it can be off, sees no edge at
/// nodes that read a view or a frozen parameter, and what it throws is logged and dropped. A hook is where it cannot
/// tell: on those nodes, on all nodes where observers are off, and on each parameter before its gradient is
/// accumulated, when an error has to keep `.grad` as it is. The second call for a group does nothing. In return hooks
/// do not see custom Functions, whose nodes are made after their operators ran.

#include <ATen/core/Tensor.h>

#include <memory>

namespace torch::autograd {
struct Node;
}

namespace fsdp::runtime {

class ParamGroup;

/// Hooks the parameters of a group that was installed: before a gradient is accumulated, and with the whole gradient
/// after. The second hook owns the group, so a group lives as long as one of its parameters.
void hook_parameters(const std::shared_ptr<ParamGroup>& group);

/// Throws UsageError, once for each time, if somebody has put another hook in the place of the second one, which is
/// back then; or if an accumulator of rows is kept, which was taken outside a scope. Under the rank's lock.
void require_own_hooks(const std::shared_ptr<ParamGroup>& group);

/// Hooks a node that autograd recorded for an operator on parameters of `group`: when it starts in backward, parameters
/// show their whole sizes first.
void hook_node(torch::autograd::Node& node, const std::shared_ptr<ParamGroup>& group);

/// From now on, in this process, what `hook_node` does happens without a hook for nodes that lead straight to a
/// parameter, while LibTorch's observers are on (at::RecordFunctionGuard). LibTorch logs and drops what an observer
/// throws; the operator or the accumulation that comes next throws it again. Any thread.
void observe_backward_nodes();

/// Whether the node hands a gradient straight to this tensor, so that the observer knows it.
bool leads_to(const torch::autograd::Node& node, const at::TensorImpl* parameter);

}  // namespace fsdp::runtime
