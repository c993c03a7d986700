#pragma once
/// \file
/// Steps that some ranks have no data for.

#include <fsdp/group.h>

#include <functional>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup sharding
/// \{

/// How a step counts that some ranks have no data for.
struct JoinOptions {
  /// The summed gradients are divided by the number of all ranks, as in every step, so that each sample counts as much
  /// at the end of an epoch as before. Without it by the number of ranks that have data: then they are those of the
  /// mean over the joined batch of these. The same on every rank. A factor of Group::set_gradient_divide_factor is
  /// scaled in the same way.
  bool divide_by_initial_world_size = true;
};

/// Runs one step of training where ranks have unequally many batches, as DDP's join does, with every strategy.
///
/// `step` is called on every rank: any forwards of the model and their backwards, also several, such as micro-batches.
/// A rank that has no data runs it on any batch that the model takes, usually its last one, so that it takes part in
/// what the ranks do together (gathers, reductions, collectives of the program's own). The gradients of its backwards
/// are left out, whatever they are: the sums are those of the ranks that have data, a parameter that only a rank
/// without data used keeps its `.grad`, and the rank is left with its rows of the sums. Gradients that it had before,
/// of micro-batches whose reduction waits, count. Returns true, whereupon every rank clips and makes the optimizer's
/// step, since each has rows; or false, on every rank and without calling `step`, if no rank has data.
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
/// All models in `step` are sharded over the process group of `model`. Whatever has to be alike on all ranks in a step
/// outside of join, such as the order in which groups are read, has to be alike here. Buffers that are broadcast
/// (FullyShardOptions::broadcast_buffers) are those of the first rank that has data; other buffers, such as a batch
/// norm's running statistics, are each rank's own and move on with its batch. Batch norms over the process group of
/// `model` (fsdp::convert_sync_batchnorm, fsdp::SyncBatchNorm) leave the batches of ranks without data out. What the
/// library does not sum is the program's to leave out: gradients of parameters that are in no group, losses, metrics,
/// and what hooks on tensors see. A step takes one small collective more than without join.
///
/// Collective, outside of scopes and backwards of any model; one thread. Throws UsageError inside of them, an Error on
/// the other ranks, and what `step` throws. If that is an exception on some ranks only, Group::reset_iter_state() on
/// every rank begins anew, as after any step.
bool join(const Group& model, bool has_data, const std::function<void()>& step, const JoinOptions& options = {});

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
