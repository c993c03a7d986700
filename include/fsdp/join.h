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
/// Where this rank has data, `step` is called: any forwards of the model and their backwards, also several, such as
/// micro-batches. Where it has none, `step` is not called: the rank takes part in all that the other ranks' steps do
/// with each other (gathers, reductions, scopes that open, buffers), has no gradients, and is left with the rows of the
/// sum. Nothing is recorded or predicted, so steps may differ from one to the next, and a rank may have no data at all.
/// Returns true, whereupon every rank clips and makes the optimizer's step, since each has rows; or false, on every
/// rank and without calling `step`, if no rank has data.
///
///     auto batch = loader->begin();
///     const auto train = [&] { loss(model(batch->data), batch->target).backward(); ++batch; };
///     while (fsdp::join(model, batch != loader->end(), train)) {
///       fsdp::clip_grad_norm_(model, 1.0);
///       optimizer.step();
///       optimizer.zero_grad();
///     }
///
/// All models in `step` are sharded over the process group of `model`, and by every rank in the same order. What a rank
/// without data cannot know of stays out of it: collectives of the program's own, such as clip_grad_norm_ and metrics.
/// Buffers that are broadcast (FullyShardOptions::broadcast_buffers) are those of the first rank that has data. While
/// some rank has none, others send it some bytes before each gather and reduction, and only what prefetch lists name is
/// gathered ahead; a step for which all have data costs one small collective more. A rank that has a gradient hook of a
/// group calls it, whether it has data or not.
///
/// Collective, outside of scopes and backwards; one thread. Throws UsageError inside of them, before anything is
/// communicated; what `step` throws, and a Mismatch on ranks without data if a step that they take part in threw: then
/// Group::reset_iter_state() on every rank begins anew.
bool join(const Group& model, bool has_data, const std::function<void()>& step, const JoinOptions& options = {});

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
