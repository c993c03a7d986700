#pragma once
/// \file
/// Training steps in which some ranks have no data.

#include <fsdp/group.h>

#include <functional>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup sharding
/// \{

/// Options of join: how gradients are scaled in steps for which some ranks have no data.
struct JoinOptions {
  /// If true, summed gradients are divided by the number of all ranks even if some of them have no data, so that each
  /// sample has the same weight throughout an epoch. If false, they are divided by the number of ranks with data, so
  /// they are the mean over the batches of these ranks; a factor of Group::set_gradient_divide_factor is then
  /// multiplied by the share of ranks that have data. Must be the same on every rank.
  bool divide_by_initial_world_size = true;
};

/// Runs one training step on ranks with unequal numbers of batches, like DDP's join. Every strategy supports it.
///
/// `step` runs one or several forwards of the model and their backwards; every rank calls it. A rank without data calls
/// it on any valid batch, usually its last one, so that the rank takes part in gathers, reductions and the program's
/// own collectives. join ignores the gradients of that rank's backwards, so sums include only ranks with data, and a
/// parameter that only ranks without data used keeps its `.grad`. Earlier gradients of that rank, from micro-batches
/// that are not reduced yet, do count. Returns true on every rank if any rank has data; every rank then clips and steps
/// the optimizer. Otherwise returns false on every rank without calling `step`.
///
///     torch::data::Example<> last{torch::zeros({1, 784}), torch::zeros({1}, torch::kLong)};  // if a rank has no batch
///     auto batch = loader->begin();
///     const auto train = [&] {
///       if (batch != loader->end()) {
///         last = *batch;
///         ++batch;
///       }
///       loss(model(last.data), last.target).backward();
///     };
///     while (fsdp::join(model, batch != loader->end(), train)) {
///       fsdp::clip_grad_norm_(model, 1.0);
///       optimizer.step();
///       optimizer.zero_grad();
///     }
///
/// All models in `step` must be sharded over the process group of `model`, and the rules of an ordinary step hold, for
/// example that all ranks read the groups in the same order. Broadcast buffers (FullyShardOptions::broadcast_buffers)
/// come from the first rank with data; other buffers, such as a batch norm's running statistics, are updated by each
/// rank's own batch. Batch norms over the process group of `model` (fsdp::convert_sync_batchnorm, fsdp::SyncBatchNorm)
/// ignore batches of ranks without data. The program itself must ignore ranks without data in gradients of parameters
/// that are in no group, losses, metrics and tensor hooks. Each step runs one small collective more than without join.
///
/// Collective. Call this function outside scopes and backwards of all models, from one thread. If one of these is open,
/// it throws UsageError on this rank and Error on the other ranks. Also throws what `step` throws; if only some ranks
/// throw, call Group::reset_iter_state() on every rank, as after any failed step.
bool join(const Group& model, bool has_data, const std::function<void()>& step, const JoinOptions& options = {});

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
