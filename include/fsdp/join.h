#pragma once
/// \file
/// Training steps for which some ranks have no data.

#include <fsdp/group.h>

#include <functional>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup sharding
/// \{

/// How gradients are scaled in steps for which some ranks have no data.
struct JoinOptions {
  /// If true, summed gradients are divided by the number of all ranks as in every step, so each sample has the same
  /// weight throughout an epoch. If false, they are divided by the number of ranks with data, so they are the mean over
  /// the batches of these ranks. A factor of Group::set_gradient_divide_factor is scaled alike. Must be the same on
  /// every rank.
  bool divide_by_initial_world_size = true;
};

/// Runs one training step on ranks with unequal numbers of batches, like DDP's join, with every strategy.
///
/// `step` runs on every rank: one or several forwards of the model and their backwards. A rank without data runs it on
/// any valid batch, usually its last one, so that it takes part in gathers, reductions and the program's own
/// collectives. The gradients of its backwards are ignored, so sums include only ranks with data, and a parameter that
/// only ranks without data used keeps its `.grad`. Earlier gradients of that rank, from micro-batches whose reduction
/// is pending, do count. Returns true, after which every rank clips and steps the optimizer; or false on every rank,
/// without calling `step`, if no rank has data.
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
/// All models in `step` must be sharded over the process group of `model`, and ranks must agree on everything on which
/// they must agree in an ordinary step, such as the order in which groups are read. Broadcast buffers
/// (FullyShardOptions::broadcast_buffers) come from the first rank with data; other buffers, such as a batch norm's
/// running statistics, are updated by each rank's own batch. Batch norms over the process group of `model`
/// (fsdp::convert_sync_batchnorm, fsdp::SyncBatchNorm) ignore batches of ranks without data. The program itself must
/// ignore such ranks in gradients of parameters without a group, losses, metrics and tensor hooks. Each step makes one
/// small collective more than without join.
///
/// Collective. Call it outside scopes and backwards of all models, from one thread. Otherwise it throws UsageError, and
/// Error on the other ranks. Also throws what `step` throws; if only some ranks throw, call Group::reset_iter_state()
/// on every rank, as after any failed step.
bool join(const Group& model, bool has_data, const std::function<void()>& step, const JoinOptions& options = {});

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
