#pragma once
/// \file
/// When graph tasks enter groups, reduce them and leave them.

#include <ATen/core/Tensor.h>

#include "runtime/param_group.h"

namespace torch::autograd {
struct Node;
}

namespace fsdp::runtime {

constexpr const char* kUnfinishedBackward =
    "an earlier backward did not finish, because an exception ended it or because it runs on another thread. Call "
    "reset_iter_state() on the model on every rank, then start the iteration again";

/// The current graph task is about to use `group`: everything of its scope shows whole parameters until the task ends.
/// Returns whether it had not used it before. Throws UsageError where it may not.
///
/// Note [Entering a backward]. Two things enter: autograd before it runs a node (Note [Before a node]), and an operator
/// on a parameter (interceptor.cpp), because code may run forward again in a graph that leads to no parameter.
bool enter_backward(ParamGroup& group);
/// Throws UsageError if another thread runs a backward through `group`, and tells the other ranks, which may wait for
/// this thread's `operation`.
void require_no_backward_elsewhere(ParamGroup& group, const char* operation);
/// Whether the current graph task runs this node of its graph: in autograd::grad and backward(inputs) it may not.
bool runs_in_task(torch::autograd::Node* node);
/// A whole gradient, in a graph task that has entered the group. Starts the reductions whose turn it is.
void gradient_arrived(ParamGroup& group, size_t slot, at::Tensor gradient);

/// Forgets open graph tasks, reductions and all predictions, after an exception. Under the rank's lock.
void reset_backward(RankState& rank);

}  // namespace fsdp::runtime
