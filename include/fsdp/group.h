#pragma once
/// \file
/// The handle of a sharded module and its groups.

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <fsdp/group_collectives.h>

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup sharding
/// \{

struct GroupView;

/// Number of bytes that a rank holds now, and its peak since `Group::reset_peak_stats()`.
struct ByteCount {
  int64_t current = 0;  ///< number of bytes now
  int64_t peak = 0;     ///< largest number of bytes since the last reset
};

/// Bytes that a rank holds, by class; see docs/memory.md.
struct ByteCounts {
  ByteCount rows;   ///< bytes of this rank's rows, with padding
  ByteCount whole;  ///< bytes of gathered whole parameters
  /// Bytes of whole gradients that are not reduced yet, and of the rows' gradients. Buffers of reductions do not count.
  ByteCount gradient;
  ByteCount optimizer;   ///< bytes of the state of fsdp::optim's optimizers, with padding
  ByteCount activation;  ///< bytes that checkpointed regions keep; with RecordActivations, all that forward holds
  ByteCount host;        ///< bytes of host memory that offloading uses for a model on an accelerator
  ByteCount disk;        ///< bytes of files that offloading uses
};

/// Statistics of the groups under a module, on this rank, since the groups were made. Gathers that move no data, i.e.
/// with one rank or in shared memory, do not count. The byte counts cover all groups of this rank and process group;
/// fsdp::memory_report has the counts of each group.
struct GroupStats : ByteCounts {
  int64_t groups = 0;                 ///< number of groups
  int64_t parameter_numel = 0;        ///< number of elements of whole parameters
  int64_t rows_numel = 0;             ///< number of elements of this rank's rows
  int64_t gathers = 0;                ///< number of gathers, including those among neighbours
  int64_t gathers_within = 0;         ///< number of gathers among the neighbours of Reshard::within
  int64_t reductions = 0;             ///< number of reductions of gradients, one for each bucket
  int64_t intercepted_operators = 0;  ///< number of operators on sharded tensors, in all groups of this rank
};

/// Guard of Group::no_sync. While the guard lives, gradients are not reduced: whole gradients accumulate on each rank,
/// and the first backward after the guard reduces their sum. Until then these gradients are not in `.grad`, an
/// optimizer step throws UsageError, and zero_grad() does not drop the gradients (Group::reset_iter_state does). If a
/// parameter is shared with another model, its whole group is affected. Destroy guards in the reverse order of their
/// construction.
///
///     std::optional<fsdp::NoSync> guard;
///     if (!is_last) guard.emplace(model.no_sync());
class [[nodiscard]] NoSync {
 public:
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;
  /// Takes over from the other guard. The destructor of the other guard then has no effect.
  NoSync(NoSync&& other) noexcept = default;

 private:
  friend class Group;
  explicit NoSync(std::shared_ptr<const GroupView> view);
  std::shared_ptr<const GroupView> view_;
  std::vector<bool> previous_;
};

/// Handle of a `Group::unshard()`, with which you wait for the gather. The destructor does not wait.
class [[nodiscard]] UnshardHandle {
 public:
  /// Waits until the whole parameters are in memory. May be called again. Throws what Work::wait throws.
  void wait();

 private:
  friend class Group;
  explicit UnshardHandle(std::shared_ptr<const GroupView> view) : view_(std::move(view)) {}
  std::shared_ptr<const GroupView> view_;
};

/// Handle of the group that one `fully_shard` call made and of the groups under its module. Copies are cheap and share
/// the groups.
///
/// `unshard`, `reshard`, `set_unshard_in_backward`, prefetch lists, the divide factor, hooks and custom collectives act
/// on the module's own group. Functions with a parameter `recurse` act on all groups under the module, or on the
/// module's own group if `recurse` is false; `no_sync`, `reset_iter_state`, `parameters` and `stats` act on all groups.
/// Functions are not collective unless they say so, but settings must be the same on every rank. Thread-safe.
///
///     for (size_t i = 0; i < batches.size(); ++i) {
///       group.set_requires_gradient_sync(i + 1 == batches.size());  // one reduction for all
///       loss(model(batches[i])).backward();
///     }
class Group {
 public:
  /// Starts to gather the whole parameters before an operator needs them. Outside scopes the parameters still show
  /// rows. They stay gathered until `reshard()` or until rows are written. Collective.
  UnshardHandle unshard() const;
  /// Frees the whole parameters of this group; the next operator that reads one of them gathers the group again. Waits
  /// for operators of other threads that use the whole parameters. Throws UsageError while a summon_full_params is
  /// open.
  void reshard() const;

  /// Sets whether a backward reduces gradients. If `requires_sync` is false, whole gradients accumulate on each rank,
  /// and the next backward for which it is true reduces their sum; see NoSync.
  void set_requires_gradient_sync(bool requires_sync, bool recurse = true) const;
  /// Turns gradient sync off while the returned guard lives: `auto guard = group.no_sync();`.
  NoSync no_sync() const;
  /// Sets whether a backward reduces gradients over replicas, for groups with replicas. If `requires_all_reduce` is
  /// false, a backward reduces gradients only over the ranks that rows are sharded over and keeps this rank's rows of
  /// the sum; the next backward for which it is true also reduces these sums over the replicas and divides them.
  /// Micro-batches therefore hold no whole gradients, and the replicas communicate once. Until then the sums are not in
  /// `.grad`, as with NoSync. If every rank has all rows, this setting is the same as set_requires_gradient_sync;
  /// without replicas it has no effect.
  ///
  ///     for (size_t i = 0; i < batches.size(); ++i) {
  ///       group.set_requires_all_reduce(i + 1 == batches.size());
  ///       loss(model(batches[i])).backward();
  ///     }
  void set_requires_all_reduce(bool requires_all_reduce, bool recurse = true) const;
  /// Sets, for all groups under the module, whether a backward waits for its reductions. If `is_last` is false, a
  /// backward returns while reductions are in flight, so that the next computation, such as a pipeline's next
  /// micro-batch, does not wait for them. `.grad` is complete after the next backward for which `is_last` is true.
  /// Until then an optimizer step, clipping and full_grad throw UsageError, zero_grad() does not drop the gradients in
  /// flight (reset_iter_state does), and the hook of set_post_accumulate_grad_hook is not called. Each group has at
  /// most one reduction in flight, and at most two of the groups with sharded rows have one.
  void set_is_last_backward(bool is_last) const;
  /// Lets the next gathers of all groups under the module wait for `event` only, instead of all work on the current
  /// stream. Record the event after `optimizer.step()`, so that later work on the stream, such as metrics or the next
  /// batch, does not delay gathers. The setting lasts until rows are written again, so call this function after each
  /// step. Throws UsageError unless the event was recorded on the device of the whole parameters. Has no effect on the
  /// CPU.
  ///
  ///     optimizer.step();
  ///     c10::Event event(c10::kCUDA);
  ///     event.record(c10::cuda::getCurrentCUDAStream());
  ///     group.set_post_optim_event(std::move(event));
  void set_post_optim_event(c10::Event event) const;
  /// Sets a hook that a backward calls with the group's reduced gradients before it adds them to `.grad`. A backward
  /// calls the hook once for each plane of the group, i.e. for the parameters of one dtype and row length. It passes
  /// this rank's slice of the plane: a flat tensor in the order of the rows, with zeros between parameters, that holds
  /// the sum over all ranks times 1/factor (set_gradient_divide_factor). The hook may change the tensor in place. All
  /// ranks call the hook for the same groups in the same order, so the hook may communicate. It runs without autograd
  /// in the thread of the backward, while other threads that use the model's groups wait. If the hook throws, backward
  /// throws. An empty function removes the hook.
  ///
  ///     group.set_all_reduce_hook([](const torch::Tensor& rows) { rows.clamp_(-1, 1); });
  void set_all_reduce_hook(std::function<void(const at::Tensor& rows)> hook) const;
  /// Sets a hook that a backward calls as soon as the group's gradients are reduced and in `.grad`. The hook gets the
  /// group's parameters that have a gradient; they show this rank's rows and may be written. An optimizer of these
  /// parameters may therefore step and drop the gradients in the hook, so that a backward holds gradients of only a few
  /// groups. A backward without gradient sync does not call the hook. All ranks call the hook for the same groups in
  /// the same order. The hook runs without autograd in the thread of the backward, while other threads that use the
  /// model's groups wait, and must not use parameters of other groups. After the hook the backward must not read the
  /// group again, and the backward must not run inside a scope of the group. If a custom Function runs a parameter's
  /// forward again, the hook may get the parameter twice. If the hook throws, backward throws. An empty function
  /// removes the hook; until then a hook that owns the parameters keeps them alive.
  ///
  ///     fsdp::optim::AdamW optimizer(block.parameters());  // outlives the training
  ///     block.set_post_accumulate_grad_hook([&](const std::vector<torch::Tensor>&) {
  ///       optimizer.step();
  ///       optimizer.zero_grad();
  ///     });
  void set_post_accumulate_grad_hook(std::function<void(const std::vector<at::Tensor>& parameters)> hook) const;
  /// Replaces the group's all-gather from the next gather on, for example to send fewer bytes; an empty function
  /// restores the communicator's all-gather. `all_gather` is not called with one rank or in shared memory, because
  /// nothing has to be gathered there. Every rank must set the same function; a rank that gathers in another way than
  /// others causes a Mismatch.
  void set_custom_all_gather(AllGather all_gather) const;
  /// Replaces the group's reduce-scatter over the ranks that rows are sharded over. `reduce_scatter` is called in
  /// shared memory too. An empty function restores the communicator's reduce-scatter.
  void set_custom_reduce_scatter(ReduceScatter reduce_scatter) const;
  /// Sets whether whole parameters are freed after forward and gathered again in backward. See Reshard.
  void set_reshard_after_forward(bool reshard, bool recurse = true) const;
  /// Sets whether whole parameters are freed after backward. If `reshard` is false, they stay until rows are written,
  /// for example between micro-batches.
  void set_reshard_after_backward(bool reshard, bool recurse = true) const;
  /// Sets whether backward gathers the group again. If `unshard` is false, whole parameters stay from forward to
  /// backward.
  void set_unshard_in_backward(bool unshard) const;
  /// Sets whether every backward reduces the group even if this rank's forward did not use it; such a rank then
  /// contributes zeros.
  void set_reduce_scatter_unused_params(bool reduce, bool recurse = true) const;
  /// Sets the divisor of summed gradients: they are multiplied by 1/factor instead of 1/world_size. Throws UsageError
  /// unless `factor` is finite and greater than 0.
  void set_gradient_divide_factor(double factor) const;
  /// Sets the groups that are gathered while forward uses this group, instead of the group that followed in the last
  /// pass. They must be sharded over the same process group. An empty list restores the default.
  void set_modules_to_forward_prefetch(const std::vector<Group>& groups) const;
  /// Sets the groups that are gathered while backward uses this group, under the same rules.
  void set_modules_to_backward_prefetch(const std::vector<Group>& groups) const;

  /// Recovers from an exception in forward or backward, even if only some ranks threw, and from a `Mismatch`. The
  /// function forgets open backwards and gradients that are not yet in `.grad`, and frees whole parameters. `.grad`
  /// keeps its value, unless a backward failed on some rank: `.grad` might then hold a part of that backward's
  /// gradients, so every rank drops it. Ranks that do not call this function get a `Mismatch` when they communicate,
  /// and must then call it too. The function does not restore rows that an optimizer step has changed on some ranks
  /// only; in that case it throws a Mismatch once, and afterwards the model is usable. Collective; call it outside
  /// backward. Throws PeerLost if a rank was lost or does not call this function within the timeout.
  ///
  ///     try { step(model); } catch (const fsdp::Mismatch&) { model.reset_iter_state(); }
  void reset_iter_state() const;

  /// Returns the parameters under the module, each once even if tied. Outside scopes they show this rank's rows.
  std::vector<at::Tensor> parameters() const;
  /// Returns this rank's statistics. Any thread may call this function at any time.
  GroupStats stats() const;
  /// Sets each peak to the current number of bytes, for all groups of this rank and process group.
  void reset_peak_stats() const;
  /// Returns the module's path in the outermost sharded module, e.g. "blocks.3"; for the outermost module, its type.
  std::string name() const;
  /// Returns this rank's number in the process group that the module was sharded over.
  int rank() const;
  /// Returns the number of ranks of the process group that the module was sharded over.
  int world_size() const;

 protected:
  /// Constructor for Sharded and fully_shard.
  explicit Group(std::shared_ptr<const GroupView> view) : view_(std::move(view)) {}

 private:
  friend struct GroupView;
  std::shared_ptr<const GroupView> view_;
};

/// Prints the module tree with its groups (number of elements, in all and on this rank) and this rank's rows of each
/// parameter. Not collective.
std::ostream& operator<<(std::ostream& out, const Group& group);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
