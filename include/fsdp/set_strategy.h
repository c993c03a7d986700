#pragma once
/// \file
/// Change of the sharding strategy during training.

#include <fsdp/device_mesh.h>
#include <fsdp/group.h>
#include <fsdp/options.h>
#include <torch/optim/optimizer.h>

#include <optional>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup sharding
/// \{

/// Changes the strategy of a model between two steps: moves its rows, gradients in `.grad`, and the optimizer's state.
/// Parameters stay the same tensors, so handles, module and optimizer remain valid. Training continues as if
/// `fully_shard` had used this strategy from the start, with the same bits wherever strategies give the same bits
/// (docs/choosing.md).
///
/// `mesh` is like FullyShardOptions::mesh and must have the model's ranks; if unset, the mesh has one axis of all these
/// ranks. All groups under `model` change. The choice of Reshard becomes the strategy's default, hooks and other
/// settings stay, and the counts of Group::stats() restart. During the call a rank holds its rows, gradients and state
/// twice, and one group whole.
///
/// `optimizer` must have every parameter that requires grad. It may be any optimizer of fsdp::optim except LBFGS, or
/// Adam, AdamW, SGD, RMSprop or Adagrad of torch::optim. Its other tensors do not change.
///
/// Collective. Call this function from one thread; during the call other threads may only call stats(). Throws
/// UsageError and leaves the model unchanged in a scope, a backward or LocalRows, while gradients of no_sync() are
/// pending, for an unsupported optimizer or one that lacks a parameter, and for a mesh of other ranks or axes. Throws
/// Mismatch if ranks ask for different strategies or have different state, and what Work::wait throws. After the call,
/// the use of an older view of rows and the backward of an earlier forward throw an error.
///
///     fsdp::set_strategy(model, optimizer, fsdp::Strategy::kShardGradOp);  // enough memory after all
void set_strategy(const Group& model, torch::optim::Optimizer& optimizer, Strategy strategy,
                  const std::optional<DeviceMesh>& mesh = std::nullopt);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
