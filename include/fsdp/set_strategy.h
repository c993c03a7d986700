#pragma once
/// \file
/// Another strategy for a model in training.

#include <fsdp/device_mesh.h>
#include <fsdp/group.h>
#include <fsdp/options.h>
#include <torch/optim/optimizer.h>

#include <optional>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup sharding
/// \{

/// Moves a model to another strategy between two steps: its rows, gradients in `.grad`, and the optimizer's state. The
/// parameters stay the same tensors, so handles, module and optimizer stay as they are, and training goes on as if
/// `fully_shard` had been called with this strategy from the beginning: to the same bits where strategies have the same
/// bits (docs/choosing.md).
///
/// `mesh` is what FullyShardOptions::mesh is, of the ranks that the model has; unset: one axis of all of them. All
/// groups under `model` move, and Reshard goes back to the strategy's default; hooks and other settings stay, counts of
/// Group::stats() begin anew. Meanwhile a rank holds rows, gradients and state twice, and one group whole.
///
/// `optimizer` owns every parameter that requires grad; it is one of fsdp::optim (not LBFGS) or an element-wise one of
/// torch::optim (Adam, AdamW, SGD, RMSprop, Adagrad), and may own other tensors, which are left alone.
///
/// Collective, one thread: no other one uses the model, but for stats(). Throws UsageError, before anything is
/// communicated and with the model as it was, in a scope, a backward or LocalRows, while gradients of no_sync() wait,
/// for another optimizer or one that does not own a parameter, and for a mesh of other ranks or axes; Mismatch if ranks
/// ask for different strategies or have other state; what Work::wait throws. A view of rows from before throws when it
/// is used, and so does a backward through a forward from before.
///
///     fsdp::set_strategy(model, optimizer, fsdp::Strategy::kShardGradOp);  // enough memory after all
void set_strategy(const Group& model, torch::optim::Optimizer& optimizer, Strategy strategy,
                  const std::optional<DeviceMesh>& mesh = std::nullopt);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
