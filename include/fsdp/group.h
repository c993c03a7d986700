#pragma once
/// \file
/// The handle of a sharded module's groups.

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

/// What a rank holds, in bytes: now, and at most since `reset_peak_stats()`.
struct ByteCount {
  int64_t current = 0;  ///< now
  int64_t peak = 0;     ///< at most
};

/// What a rank holds by class, see docs/memory.md.
struct ByteCounts {
  ByteCount rows;   ///< this rank's rows with their padding
  ByteCount whole;  ///< whole parameters that were gathered
  /// Whole gradients that wait for their reduction and gradients of rows, without what a reduction under way has
  /// packed.
  ByteCount gradient;
  ByteCount optimizer;   ///< the state of fsdp::optim's optimizers with the padding that lies in it
  ByteCount activation;  ///< what checkpoints of activations keep
  ByteCount host;        ///< kept in host memory for an accelerator
  ByteCount disk;        ///< kept in files
};

/// Figures of the groups under a module, on this rank. Counts run since the groups were made; gathers
/// count where they move data: not with one rank, nor where ranks share memory. The bytes are those of all groups of
/// this rank and process group; fsdp::memory_report has those of each.
struct GroupStats : ByteCounts {
  int64_t groups = 0;                 ///< how many there are
  int64_t parameter_numel = 0;        ///< elements of whole parameters
  int64_t rows_numel = 0;             ///< elements of this rank's rows
  int64_t gathers = 0;                ///< of groups, those within neighbours included
  int64_t gathers_within = 0;         ///< of the gathers, those among the neighbours of Reshard::within
  int64_t reductions = 0;             ///< of the gradients of groups
  int64_t intercepted_operators = 0;  ///< operators that took a sharded tensor, over all groups of this rank
};

/// Gradients stay local while the guard lives: they accumulate whole on each rank, and the first backward after it
/// reduces their sum. Until then they are not in `.grad`: an optimizer step is refused, zero_grad() does not drop them
/// (Group::reset_iter_state does). A tied parameter's group is covered whole, also where it lies in another model. Last
/// in, first out. See Group::no_sync.
///
///     std::optional<fsdp::NoSync> guard;
///     if (!is_last) guard.emplace(model.no_sync());
class [[nodiscard]] NoSync {
 public:
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;
  /// The new guard takes the place of the other one, which does nothing any more.
  NoSync(NoSync&& other) noexcept = default;

 private:
  friend class Group;
  explicit NoSync(std::shared_ptr<const GroupView> view);
  std::shared_ptr<const GroupView> view_;
  std::vector<bool> previous_;
};

/// The pending `Group::unshard()`. Letting it go waits for nothing.
class [[nodiscard]] UnshardHandle {
 public:
  /// Waits until the whole parameters are in memory. Idempotent. Throws what Work::wait throws.
  void wait();

 private:
  friend class Group;
  explicit UnshardHandle(std::shared_ptr<const GroupView> view) : view_(std::move(view)) {}
  std::shared_ptr<const GroupView> view_;
};

/// A cheap, shared handle of one `fully_shard` call and of the groups under its module.
///
/// `unshard`, `reshard`, `set_unshard_in_backward`, prefetch lists, the divide factor, hooks and custom collectives act
/// on the module's own group; what takes `recurse` (false: the own group alone), scopes, `no_sync`, `reset_iter_state`,
/// `parameters` and `stats` cover all groups under the module. Not collective unless said, but settings have to be the
/// same on every rank. Thread safety: all of it.
///
///     for (size_t i = 0; i < batches.size(); ++i) {
///       group.set_requires_gradient_sync(i + 1 == batches.size());  // one reduction for all
///       loss(model(batches[i])).backward();
///     }
class Group {
 public:
  /// Starts to bring whole parameters to memory, before an operator needs them; shapes change only in scopes. They stay
  /// until `reshard()` or until the rows are written. Collective.
  UnshardHandle unshard() const;
  /// Frees the whole parameters of this group; the next operator that reads them gathers again. Waits for operators of
  /// other threads that compute with them. Throws UsageError while a summon_full_params is open.
  void reshard() const;

  /// Without it, gradients accumulate whole on each rank until a backward with it.
  void set_requires_gradient_sync(bool requires_sync, bool recurse = true) const;
  /// The same for a stretch of the program: `auto guard = group.no_sync();`.
  NoSync no_sync() const;
  /// Where rows have replicas: without it a backward sums gradients over the ranks that rows are sharded over alone and
  /// keeps this rank's rows of the sum, until a backward with it sums those over the replicas too, and divides. Over
  /// several micro-batches no whole gradients are held so, and the replicas are paid for once. What is kept is not in
  /// `.grad`, as with NoSync. Where every rank has all rows it is the same as set_requires_gradient_sync; without
  /// replicas it changes nothing.
  ///
  ///     for (size_t i = 0; i < batches.size(); ++i) {
  ///       group.set_requires_all_reduce(i + 1 == batches.size());
  ///       loss(model(batches[i])).backward();
  ///     }
  void set_requires_all_reduce(bool requires_all_reduce, bool recurse = true) const;
  /// Of all groups under the module. Without it a backward ends while reductions are in flight, so that what follows,
  /// e.g. the next micro-batch of a pipeline, does not wait for them. `.grad` has all gradients at the end of the next
  /// backward with it: until then an optimizer step, clipping and full_grad are refused, zero_grad() does not drop what
  /// is in flight (reset_iter_state does), and the hook of set_post_accumulate_grad_hook is not called. A group has one
  /// reduction in flight at a time, and of groups whose rows are sharded at most two are.
  void set_is_last_backward(bool is_last) const;
  /// The gathers of all groups under the module come after `event`, in place of all that the current stream was given
  /// before: record it behind `optimizer.step()`, and what you give the stream after that, e.g. metrics or the next
  /// batch, holds no gather up. It holds until rows are written again, so it is set anew for each step, and a write
  /// after it, which it does not cover, ends it. Throws UsageError unless the event was recorded on the device of the
  /// whole parameters. On the CPU, where nothing is queued, it changes nothing.
  ///
  ///     optimizer.step();
  ///     c10::Event event(c10::kCUDA);
  ///     event.record(c10::cuda::getCurrentCUDAStream());
  ///     group.set_post_optim_event(std::move(event));
  void set_post_optim_event(c10::Event event) const;
  /// `hook` is called with this rank's slice of the group's reduced gradients when they are there, before they are
  /// added to `.grad`: once for each of the group's planes (parameters of one dtype and one length of rows), a flat
  /// tensor in the rows' order with zeros between parameters, which it may change in place. It gets the sum over all
  /// ranks times 1/factor. Every rank calls it for the same groups in the same order, so it may communicate. It runs
  /// without autograd in the thread of a backward, while other threads that use the model's groups wait. If it throws,
  /// so does backward. None takes it away.
  ///
  ///     group.set_all_reduce_hook([](const torch::Tensor& rows) { rows.clamp_(-1, 1); });
  void set_all_reduce_hook(std::function<void(const at::Tensor& rows)> hook) const;
  /// `hook` is called in a backward as soon as the group's gradients are reduced and in `.grad`, with the parameters
  /// that have one. They show this rank's rows, as outside, and may be written, so an optimizer of them may step and
  /// drop the gradients: then a backward holds those of a few groups only. Not for a backward without gradient sync.
  /// Every rank calls it for the same groups in the same order. It runs without autograd in the thread of the backward,
  /// while other threads that use the model's groups wait; parameters of other groups are refused in it. What the
  /// backward reads of the group after that is an error, as is a backward inside a scope of it. A parameter whose
  /// forward is run again by a custom Function may come twice. If the hook throws, so does backward. None takes it
  /// away; one that owns the parameters keeps them and itself until then.
  ///
  ///     fsdp::optim::AdamW optimizer(block.parameters());  // outlives the training
  ///     block.set_post_accumulate_grad_hook([&](const std::vector<torch::Tensor>&) {
  ///       optimizer.step();
  ///       optimizer.zero_grad();
  ///     });
  void set_post_accumulate_grad_hook(std::function<void(const std::vector<at::Tensor>& parameters)> hook) const;
  /// Gathers the group's rows with `all_gather` from the next gather on, e.g. with fewer bytes on the wire; none: with
  /// the communicator's own. It is not called where nothing is gathered: ranks share memory, or there is one. A rank
  /// that gathers in another way than others is a Mismatch.
  void set_custom_all_gather(AllGather all_gather) const;
  /// The same for the reduction of the group's gradients, over the ranks that rows are sharded over. It is called over
  /// shared memory too.
  void set_custom_reduce_scatter(ReduceScatter reduce_scatter) const;
  /// Free whole parameters after forward and gather them again in backward. See Reshard.
  void set_reshard_after_forward(bool reshard, bool recurse = true) const;
  /// Without it whole parameters stay until the rows are written, e.g. between micro-batches.
  void set_reshard_after_backward(bool reshard, bool recurse = true) const;
  /// Gather again in backward. Without it whole parameters stay from forward to backward.
  void set_unshard_in_backward(bool unshard) const;
  /// Reduce this group in every backward even if this rank's forward did not reach it (it contributes nothing).
  void set_reduce_scatter_unused_params(bool reduce, bool recurse = true) const;
  /// The summed gradients are multiplied by 1/factor instead of 1/world_size. Throws UsageError unless factor > 0.
  void set_gradient_divide_factor(double factor) const;
  /// Groups of the same process group to gather while this one is used, instead of the one that followed in the last
  /// pass; an empty list goes back to that.
  void set_modules_to_forward_prefetch(const std::vector<Group>& groups) const;
  /// The same for backward.
  void set_modules_to_backward_prefetch(const std::vector<Group>& groups) const;

  /// After an exception in forward or backward, also on some ranks only: forgets open backwards and gradients that were
  /// not handed out, frees whole parameters. `.grad` is as before, unless a backward failed on some rank: then it may
  /// hold a part of that backward's gradients and is dropped on every rank, so an accumulation begins anew. Ranks that
  /// go on instead, or wait for this one, get a `Mismatch`, after which they call it too. Also after a `Mismatch` of
  /// another cause. Rows that an optimizer step changed on some ranks only stay so: that is a Mismatch thrown once,
  /// with the model usable. Collective; outside backward. Throws PeerLost if a rank was lost or does not come within
  /// the timeout.
  ///
  ///     try { step(model); } catch (const fsdp::Mismatch&) { model.reset_iter_state(); }
  void reset_iter_state() const;

  /// The parameters under the module, a tied one once: rows of this rank outside scopes.
  std::vector<at::Tensor> parameters() const;
  /// Any thread, at any time: it waits for nobody.
  GroupStats stats() const;
  /// Peaks start again from what is held now, for all groups of this rank and process group.
  void reset_peak_stats() const;
  /// The module's path below the outermost module that was sharded, e.g. "blocks.3"; of that one itself, its type.
  std::string name() const;
  /// This rank's number in the process group that the module was sharded over.
  int rank() const;
  /// The number of ranks of that process group.
  int world_size() const;

 protected:
  /// For Sharded and what fully_shard returns.
  explicit Group(std::shared_ptr<const GroupView> view) : view_(std::move(view)) {}

 private:
  friend struct GroupView;
  std::shared_ptr<const GroupView> view_;
};

/// Prints the module tree with its groups (elements, balance, padding) and this rank's rows of each parameter. Not
/// collective.
std::ostream& operator<<(std::ostream& out, const Group& group);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
