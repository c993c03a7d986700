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

/// Bytes that a rank holds now, and their peak since `reset_peak_stats()`.
struct ByteCount {
  int64_t current = 0;  ///< bytes now
  int64_t peak = 0;     ///< the most bytes since then
};

/// Bytes that a rank holds, by class; see docs/memory.md.
struct ByteCounts {
  ByteCount rows;   ///< this rank's rows, with padding
  ByteCount whole;  ///< gathered whole parameters
  /// Whole gradients that wait for their reduction, and gradients of rows; without the buffers of reductions in flight.
  ByteCount gradient;
  ByteCount optimizer;   ///< state of fsdp::optim's optimizers, with padding
  ByteCount activation;  ///< what activation checkpoints keep; under fsdp::RecordActivations, what forward holds
  ByteCount host;        ///< host memory that offloading uses for a model on an accelerator
  ByteCount disk;        ///< files that offloading uses
};

/// Statistics of the groups under a module, on this rank, since the groups were made. Gathers count only if they move
/// data, so not with one rank or in shared memory. Bytes cover all groups of this rank and process group;
/// fsdp::memory_report has them per group.
struct GroupStats : ByteCounts {
  int64_t groups = 0;                 ///< number of groups
  int64_t parameter_numel = 0;        ///< elements of whole parameters
  int64_t rows_numel = 0;             ///< elements of this rank's rows
  int64_t gathers = 0;                ///< gathers of groups, including those within neighbours
  int64_t gathers_within = 0;         ///< gathers among the neighbours of Reshard::within
  int64_t reductions = 0;             ///< reductions of groups' gradients
  int64_t intercepted_operators = 0;  ///< operators that took a sharded tensor, over all groups of this rank
};

/// While the guard lives, gradients are not reduced: whole gradients accumulate on each rank, and the first backward
/// after the guard reduces their sum. Until then they are not in `.grad`, an optimizer step is refused, and zero_grad()
/// does not drop them (Group::reset_iter_state does). If a parameter is shared with another model, its whole group is
/// affected. Destroy guards in the reverse order of their construction. See Group::no_sync.
///
///     std::optional<fsdp::NoSync> guard;
///     if (!is_last) guard.emplace(model.no_sync());
class [[nodiscard]] NoSync {
 public:
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;
  /// Takes over from the other guard, which then has no effect.
  NoSync(NoSync&& other) noexcept = default;

 private:
  friend class Group;
  explicit NoSync(std::shared_ptr<const GroupView> view);
  std::shared_ptr<const GroupView> view_;
  std::vector<bool> previous_;
};

/// Waits for a `Group::unshard()`. Its destructor does not wait.
class [[nodiscard]] UnshardHandle {
 public:
  /// Waits until the whole parameters are in memory. May be called again. Throws what Work::wait throws.
  void wait();

 private:
  friend class Group;
  explicit UnshardHandle(std::shared_ptr<const GroupView> view) : view_(std::move(view)) {}
  std::shared_ptr<const GroupView> view_;
};

/// A handle of one `fully_shard` call and of the groups under its module. Copies are cheap and share the groups.
///
/// `unshard`, `reshard`, `set_unshard_in_backward`, prefetch lists, the divide factor, hooks and custom collectives act
/// on the module's own group. Functions with a parameter `recurse` act on all groups under the module, or with
/// `recurse` = false on the own group; `no_sync`, `reset_iter_state`, `parameters` and `stats` act on all groups.
/// Functions are not collective unless they say so, but settings must be the same on every rank. Thread-safe.
///
///     for (size_t i = 0; i < batches.size(); ++i) {
///       group.set_requires_gradient_sync(i + 1 == batches.size());  // one reduction for all
///       loss(model(batches[i])).backward();
///     }
class Group {
 public:
  /// Starts to gather the whole parameters before an operator needs them; their shapes change only in scopes. The
  /// parameters stay whole until `reshard()` or until rows are written. Collective.
  UnshardHandle unshard() const;
  /// Frees the whole parameters of this group; the next operator that reads them gathers them again. Waits for
  /// operators of other threads that use them. Throws UsageError while a summon_full_params is open.
  void reshard() const;

  /// If false, whole gradients accumulate on each rank and are reduced by the next backward with true.
  void set_requires_gradient_sync(bool requires_sync, bool recurse = true) const;
  /// Turns gradient sync off while the returned guard lives: `auto guard = group.no_sync();`.
  NoSync no_sync() const;
  /// For groups with replicas. If false, a backward reduces gradients only over the ranks that rows are sharded over
  /// and keeps this rank's rows of the sum; the next backward with true reduces these sums over the replicas too, and
  /// divides. So micro-batches hold no whole gradients, and the replicas communicate once. The sums are not in `.grad`,
  /// as with NoSync. If every rank has all rows, this is the same as set_requires_gradient_sync; without replicas it
  /// has no effect.
  ///
  ///     for (size_t i = 0; i < batches.size(); ++i) {
  ///       group.set_requires_all_reduce(i + 1 == batches.size());
  ///       loss(model(batches[i])).backward();
  ///     }
  void set_requires_all_reduce(bool requires_all_reduce, bool recurse = true) const;
  /// For all groups under the module. If false, a backward returns while reductions are in flight, so that the next
  /// computation, such as a pipeline's next micro-batch, does not wait for them. `.grad` is complete after the next
  /// backward with true. Until then an optimizer step, clipping and full_grad are refused, zero_grad() does not drop
  /// the gradients in flight (reset_iter_state does), and the hook of set_post_accumulate_grad_hook is not called. Each
  /// group has at most one reduction in flight; of the groups with sharded rows at most two have one.
  void set_is_last_backward(bool is_last) const;
  /// Lets the next gathers of all groups under the module wait for `event` only, instead of all work on the current
  /// stream. Record the event after `optimizer.step()`, so that later work on the stream, such as metrics or the next
  /// batch, does not delay gathers. The setting lasts until rows are written again, so set it after each step. Throws
  /// UsageError unless the event was recorded on the device of the whole parameters. No effect on the CPU.
  ///
  ///     optimizer.step();
  ///     c10::Event event(c10::kCUDA);
  ///     event.record(c10::cuda::getCurrentCUDAStream());
  ///     group.set_post_optim_event(std::move(event));
  void set_post_optim_event(c10::Event event) const;
  /// Sets a hook on this rank's slice of the group's reduced gradients, which is called before they are added to
  /// `.grad`. It is called once for each plane of the group (parameters of one dtype and row length), with a flat
  /// tensor in the order of the rows, with zeros between parameters. The tensor holds the sum over all ranks times
  /// 1/factor; the hook may change it in place. All ranks call the hook for the same groups in the same order, so it
  /// may communicate. It runs without autograd in the thread of a backward, while other threads that use the model's
  /// groups wait. If it throws, backward throws. An empty function removes it.
  ///
  ///     group.set_all_reduce_hook([](const torch::Tensor& rows) { rows.clamp_(-1, 1); });
  void set_all_reduce_hook(std::function<void(const at::Tensor& rows)> hook) const;
  /// Sets a hook that a backward calls as soon as the group's gradients are reduced and in `.grad`, with the parameters
  /// that have one. The parameters show this rank's rows and may be written, so an optimizer of these parameters may
  /// step and drop the gradients; then a backward holds gradients of only a few groups. It is not called in a backward
  /// without gradient sync. All ranks call the hook for the same groups in the same order. It runs without autograd in
  /// the thread of the backward, while other threads that use the model's groups wait; it may not use parameters of
  /// other groups. After the hook the backward must not read the group again, and the backward must not run inside a
  /// scope of the group. If a custom Function runs a parameter's forward again, the parameter may be passed twice. If
  /// the hook throws, backward throws. An empty function removes it; until then a hook that owns the parameters keeps
  /// them alive.
  ///
  ///     fsdp::optim::AdamW optimizer(block.parameters());  // outlives the training
  ///     block.set_post_accumulate_grad_hook([&](const std::vector<torch::Tensor>&) {
  ///       optimizer.step();
  ///       optimizer.zero_grad();
  ///     });
  void set_post_accumulate_grad_hook(std::function<void(const std::vector<at::Tensor>& parameters)> hook) const;
  /// Replaces the group's all-gather from the next gather on, for example to send fewer bytes; an empty function
  /// restores the communicator's. It is not called with one rank or in shared memory, which need no gather. A rank that
  /// gathers in another way than others causes a Mismatch.
  void set_custom_all_gather(AllGather all_gather) const;
  /// Replaces the group's reduce-scatter over the ranks that rows are sharded over. It is called in shared memory too.
  void set_custom_reduce_scatter(ReduceScatter reduce_scatter) const;
  /// Whether whole parameters are freed after forward and gathered again in backward. See Reshard.
  void set_reshard_after_forward(bool reshard, bool recurse = true) const;
  /// If false, whole parameters stay after backward until rows are written, for example between micro-batches.
  void set_reshard_after_backward(bool reshard, bool recurse = true) const;
  /// If false, whole parameters stay from forward to backward instead of being gathered again.
  void set_unshard_in_backward(bool unshard) const;
  /// Whether every backward reduces this group even if this rank's forward did not use it; such a rank contributes
  /// zeros.
  void set_reduce_scatter_unused_params(bool reduce, bool recurse = true) const;
  /// Summed gradients are multiplied by 1/factor instead of 1/world_size. Throws UsageError unless factor is finite and
  /// greater than 0.
  void set_gradient_divide_factor(double factor) const;
  /// The groups to gather while this one is used in forward, instead of the group that followed in the last pass. They
  /// must be of the same process group. An empty list restores the default.
  void set_modules_to_forward_prefetch(const std::vector<Group>& groups) const;
  /// The groups to gather while this one is used in backward.
  void set_modules_to_backward_prefetch(const std::vector<Group>& groups) const;

  /// Recovers from an exception in forward or backward, even if only some ranks threw, and from a `Mismatch`. Forgets
  /// open backwards and gradients that are not yet in `.grad`, and frees whole parameters. `.grad` keeps its value,
  /// unless a backward failed on some rank: it might hold a part of that backward's gradients, so every rank drops it
  /// and accumulation begins anew. Ranks that do not call this function get a `Mismatch` when they communicate, and
  /// must then call it too. Rows that an optimizer step has changed on some ranks only are not restored: this function
  /// throws a Mismatch once, and the model is usable. Collective; call it outside backward. Throws PeerLost if a rank
  /// was lost or does not call it within the timeout.
  ///
  ///     try { step(model); } catch (const fsdp::Mismatch&) { model.reset_iter_state(); }
  void reset_iter_state() const;

  /// The parameters under the module, each once even if tied. Outside scopes they show this rank's rows.
  std::vector<at::Tensor> parameters() const;
  /// Statistics on this rank. Any thread may call it at any time.
  GroupStats stats() const;
  /// Resets the peaks to the current bytes, for all groups of this rank and process group.
  void reset_peak_stats() const;
  /// The module's path in the outermost sharded module, e.g. "blocks.3"; for the outermost module, its type.
  std::string name() const;
  /// This rank in the process group that the module was sharded over.
  int rank() const;
  /// The number of ranks of that process group.
  int world_size() const;

 protected:
  /// For Sharded and fully_shard.
  explicit Group(std::shared_ptr<const GroupView> view) : view_(std::move(view)) {}

 private:
  friend struct GroupView;
  std::shared_ptr<const GroupView> view_;
};

/// Prints the module tree with its groups (elements, and those of this rank) and this rank's rows of each parameter.
/// Not collective.
std::ostream& operator<<(std::ostream& out, const Group& group);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
