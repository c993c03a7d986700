#pragma once
/// \file
/// Where autograd calls the runtime.

#include <ATen/core/Tensor.h>

#include <memory>

namespace torch::autograd {
struct Node;
}

namespace fsdp::runtime {

class ParamGroup;

/// Hooks a parameter: before its gradient is accumulated, and with the whole gradient after. The second hook owns the
/// group, so a group lives as long as one of its parameters.
void hook_parameter(const at::Tensor& parameter, const std::shared_ptr<ParamGroup>& group, size_t slot);

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
