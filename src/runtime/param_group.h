#pragma once
/// \file
/// A param group: parameters that are all-gathered and reduced together.

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "comm/core/fault_point.h"
#include "comm/core/rank_lock.h"
#include "runtime/group_policy.h"
#include "runtime/rank_state.h"
#include "runtime/reduction.h"
#include "runtime/row_writes.h"
#include "runtime/sharded_params.h"

namespace torch::nn {
class Module;
}

namespace fsdp::runtime {

/// Counts the operators, on any thread, that compute with a group's unsharded parameters. The parameters are not freed
/// until these operators have returned.
class Pins {
 public:
  void add() {
    ++count_;
    ++own_;
  }
  void remove() {
    --own_;
    if (--count_ == 0) count_.notify_all();
  }
  bool are_there() const { return count_ > 0; }
  /// Waits, without the rank's lock, until there are no pins. Returns true if it waited: other threads may have changed
  /// the group meanwhile. A thread that is itself inside a pinned operator does not wait, because it would wait for
  /// itself.
  bool wait_until_gone(RankLock& lock) {
    if (!are_there() || own_ > 0) return false;
    fault_point("waiting for operators");
    const RankLock::ScopedRelease others_go_on(lock);
    for (int count = count_; count > 0; count = count_) count_.wait(count);
    return true;
  }

 private:
  static inline constinit thread_local int own_ = 0;  // pins of this thread on all groups
  std::atomic<int> count_ = 0;
};

/// Function that returns the new form of a parameter whose form is `form` (see ParamSlot::form). An empty function
/// changes no form.
using FormChange = std::function<memory::Form(const memory::Form& form)>;

enum class GatherState : uint8_t { kSharded, kGathering, kWhole };

/// Planes whose gradients are reduced together; see Note [Order of buckets].
struct Bucket {
  bool is_begun = false;      // the open backward has begun a reduction; gradients that arrive later need another one
  size_t missing = 0;         // number of gradients that the outermost graph task has yet to give
  size_t missing_inside = 0;  // number of gradients that backwards inside that task give, if they run
  std::optional<Reduction> in_flight = {};  // may be an earlier backward's until the open backward starts its own
  PartialSum partial_sum = {};

  bool is_complete() const { return missing == 0 && missing_inside == 0; }
};

/// One group of parameters that fully_shard made. step.cpp has the methods of a training step, in the order in which
/// they are called. The group is owned by its parameters, through a hook that each tensor stores, and by nodes of
/// autograd graphs; it refers to its parameters weakly. Thread safety: the caller of every method holds
/// `rank_state().mutex`.
class ParamGroup : public std::enable_shared_from_this<ParamGroup> {
 public:
  /// Lays the parameters out without changing them. Memory is allocated later, by `FlatParams::allocate_shard`.
  explicit ParamGroup(const GroupSpec& spec);
  ~ParamGroup();
  ParamGroup(const ParamGroup&) = delete;
  ParamGroup& operator=(const ParamGroup&) = delete;

  GroupId id() const { return id_; }
  const std::string& name() const { return name_; }
  const Placement& placement() const { return params_->placement; }
  RankState& rank_state() const { return *rank_state_; }
  const std::shared_ptr<RankState>& shared_rank_state() const { return rank_state_; }
  const std::shared_ptr<memory::ByteAccount>& account() const { return account_; }
  /// Returns the tag of a collective on this group. `call` is the user's call that needs the collective, for error
  /// messages; it may be empty.
  Tag tag(std::string subject, uint32_t writes = 0, const std::string& call = {}) const;
  std::string where(const std::string& operation) const { return placement().where(operation); }
  /// These functions change the names in messages to names relative to a module that contains this group's module.
  void rename(std::string name) { name_ = std::move(name); }
  void rename_slot(size_t slot, std::string name);

  ShardedParams& params() { return *params_; }
  std::vector<ParamSlot>& slots() { return params_->slots(); }
  std::vector<FlatParams>& flats() { return params_->flats(); }
  int64_t whole_bytes() {
    int64_t bytes = 0;
    for (const auto& flat : flats()) bytes += static_cast<int64_t>(flat.whole().bytes());
    return bytes;
  }

  /// Makes `other` live at least as long as this group. `other` has no parameters that would own it.
  void keep(std::shared_ptr<ParamGroup> other) {
    if (!keeps(*other)) kept_.push_back(std::move(other));
  }
  bool keeps(const ParamGroup& other) const {
    return this == &other || std::ranges::any_of(kept_, [&](const auto& kept) { return kept.get() == &other; });
  }

  /// These functions return true if whole parameters stay in memory after forward has read them, or after the backward.
  bool stays_after_forward() const;
  bool stays_after_backward() const;

  // Parameters show whole values while a scope or a graph task is open on the group.
  bool is_inside() const { return depth_ > 0; }
  bool is_left_next() const { return depth_ == 1; }
  bool is_in_scope() const { return depth_ > static_cast<int>(tasks_.size()); }
  void enter();
  void leave();

  GatherState state() const { return state_; }
  /// Starts to gather: kSharded -> kGathering. If it throws, the state stays kSharded. Does nothing in other states.
  /// `call` is as in `tag`. Collective.
  void unshard(const std::string& call = {});
  /// Gathers if necessary and makes the current stream wait: the state becomes kWhole, or kSharded if it throws.
  void wait_for_unshard(const std::string& call = {});
  /// Frees whole parameters after waiting for operators (see Pins): -> kSharded. If this thread must not wait for them,
  /// the parameters stay until the next scope opens. If `keeps_second_shard` and the placement has neighbours, these
  /// keep a second shard of parameters that were gathered, and the method does not wait.
  void reshard(bool keeps_second_shard = false);
  /// Copies whole parameters that other ranks can read to memory of this rank alone. The state stays kWhole; it is
  /// kSharded if the method throws.
  void copy_whole();
  /// Frees whole parameters that are older than the last write to the rows.
  void drop_stale_copy() {
    if (version_in_copy_ != version_) reshard();
  }
  /// Makes gathers wait for `event` only, not for the current stream, until rows are written again.
  void gather_after(std::shared_ptr<const c10::Event> event);
  bool wait_for_operators() { return pins.wait_until_gone(rank_state().mutex); }

  // While a backward is open, autograd writes whole gradients to `.grad`, and the rows' gradients are parked in the
  // slots. A parameter that some rank used gets a gradient on every rank; a parameter that no rank used keeps its
  // `.grad`. With set_is_last_backward(false) a backward may close while reductions are in flight. A later backward
  // then waits for them and adds their results.
  /// The graph tasks that entered the group, the outermost first.
  const std::vector<int>& tasks() const { return tasks_; }
  bool is_in_backward() const { return !tasks_.empty(); }
  bool has_task(int task) const { return std::ranges::find(tasks_, task) != tasks_.end(); }
  bool has_only_task(int task) const { return tasks_.size() == 1 && tasks_.front() == task; }
  /// Lets a graph task enter the group, whose parameters then show whole values. The first task opens the backward: it
  /// will give gradients to the slots for which `expects` returns true. If `may_recompute`, backwards inside the task
  /// may give gradients to other slots that operators have read without recording.
  void enter_backward(int task, bool (*expects)(const ParamSlot&), bool may_recompute);
  /// Lets a graph task leave the group. The last one closes the backward: `.grad` then holds the rows' gradients.
  /// Returns the message of the error that the caller must throw; empty if there is none.
  [[nodiscard]] std::string leave_backward(int task);
  /// Adds a whole gradient to those that wait for a reduction. `from_inside` is true if a backward inside the outermost
  /// graph task gives it.
  void add_gradient(size_t slot, at::Tensor gradient, bool from_inside);
  const std::vector<Bucket>& buckets() const { return buckets_; }
  bool expects_gradients() const { return expects_gradients_; }
  /// Returns true if gradients or sums over the shard axis alone, even of an earlier backward, wait for a reduction.
  bool has_gradients() const {
    const auto keeps_sum = [](const Bucket& bucket) { return bucket.partial_sum.reductions > 0; };
    return std::ranges::any_of(params_->slots(), &ParamSlot::waits) || std::ranges::any_of(buckets_, keeps_sum);
  }
  /// Waits for the bucket's reduction in flight, if any, and then starts to reduce the gradients that have arrived.
  /// Collective.
  void start_reduction(size_t bucket);
  /// Waits for all reductions in flight, also those of earlier backwards, and adds the results to the rows' gradients.
  /// If this is the last backward, it then calls the hook of set_post_accumulate_grad_hook.
  void finish_reductions();
  /// Makes the host wait for copies to host memory, then adds reduced gradients to the rows' gradients. Throws if a
  /// collective was aborted because a device failed.
  void finish_landing();
  void drop_gradients();
  void forget_reads();
  /// Returns true while the hook of set_post_accumulate_grad_hook runs. Parameters then show rows, and the hook may
  /// write them.
  bool is_in_hook() const { return is_in_hook_; }
  /// Throws UsageError if that hook has been called in the open backward, because this backward must not read values
  /// that the hook may have written.
  void require_not_handed_out() const;

  // These methods say when this rank reads and writes rows: see Note [Readers and writers of rows].
  /// Counts a scope that opens on the group and makes this rank a reader. Returns true if the ranks must meet first.
  bool begin_scope();
  /// Undoes `begin_scope` if the ranks did not meet, so that every rank counts the same scopes.
  void cancel_scope();
  /// Called after the last scope or backward on the group has closed. This rank goes on reading if a graph may still
  /// read the rows, and otherwise ends its reading.
  void leave_reading();
  /// Ends this rank's reading, because the rank writes or forgets its iteration: earlier graphs must not read rows any
  /// more.
  void end_read();
  /// Ends this rank's reading before it writes rows, so that its peers may write. If several groups are written
  /// together, the caller calls it for all of them before it waits for the first; otherwise the ranks wait for each
  /// other at each group. Throws UsageError if another thread has a scope or a backward open.
  void begin_write();
  /// Calls `begin_write`, then waits, without the rank's lock, until no peer reads the rows. Returns true if it waited.
  bool wait_to_write();
  /// Must be called before the rows of one slot, or of all slots, are written. Waits to write and makes whole copies
  /// stale.
  void prepare_write(WriteKind kind, std::optional<size_t> slot = std::nullopt);
  /// Makes whole copies stale. `prepare_write` calls it. After writes that last longer than one operator (LocalRows) it
  /// must be called once more.
  void note_write();
  int64_t version() const { return version_; }
  WriteCounts& writes() { return writes_; }
  /// Number of threads that are opening a scope and wait for the other ranks. This rank reads while there are any.
  int openings = 0;

  /// Returns true if no scope or backward is open on the group and this thread runs no backward, except one that is
  /// calling the group's hook.
  bool is_at_rest() const;
  void require_at_rest(const std::string& operation) const;
  /// Throws UsageError while gradients of earlier backwards wait for a reduction or are being reduced.
  void require_no_waiting_gradients(const std::string& operation) const;
  void require_no_waiting_gradient(size_t slot, const std::string& operation);

  /// Lays the group's parameters out over another placement, or with other dtypes or devices. The result has no memory
  /// yet.
  std::unique_ptr<ShardedParams> lay_out(const Placement& placement, const GroupPolicy& by,
                                         const FormChange& change = {});
  /// Replaces the group's layout by `params` and its policy by `to`. Views of the old rows throw when they are used.
  void move_to(std::unique_ptr<ShardedParams> params, const GroupPolicy& to);

  /// Brings the group, after an exception, to the state that it has before an iteration.
  void reset();

  GroupPolicy policy;
  Pins pins;
  /// Numbers of all-gathers that moved data, of those among neighbours, and of reductions (one for each bucket). They
  /// may be read without the lock.
  std::atomic<int64_t> gathers = 0, gathers_within = 0, reductions = 0;
  int local_rows_depth = 0;
  int summon_depth = 0;
  bool unshard_was_asked = false;
  uint64_t first_read = 0;             ///< number of the group's first read, which orders reductions; 0 if not read
  std::shared_ptr<ScopeRecord> scope;  ///< the last outermost scope that covered the group
  std::vector<std::weak_ptr<torch::nn::Module>> watched;  ///< the group's modules; expired for one without an owner
  std::unordered_set<const void*> modules;  ///< addresses of the group's modules and of all modules inside them

 private:
  Span span(std::string_view name) const;

  void publish();
  std::optional<c10::Stream> stream_of_gather();
  void start_gathers(Communicator& ranks, const Tag& tag, const AllGather& with, bool within);
  void order_read();
  bool has_second_shard();
  void drop_whole_buffers();

  void close_backward();
  memory::Charge charge_of(const at::Tensor& gradient) const;
  std::vector<Piece> take_gradients(const ReducedPlane& plane, PartialSum& kept, Reduction& taken);
  void finish_reduction(Bucket& bucket);
  void begin_landing(Bucket& bucket, Reduction reduced);
  void add_to_rows(ParamSlot& slot, at::Tensor gradient);
  void swap_parked_gradients();
  void call_post_accumulate_grad_hook();
  bool has_late_reductions() const;

  uint64_t epoch() const { return (epochs_.scopes << 32) + epochs_.backwards_after_writes; }
  bool meets() const { return !params_->shared_buffers.empty() && placement().shard().world_size() > 1; }
  void begin_read();

  const std::shared_ptr<RankState> rank_state_;  // its lock protects the members below
  const std::shared_ptr<memory::ByteAccount> account_;
  std::string name_;
  GroupId id_ = 0;
  std::unique_ptr<ShardedParams> params_;
  std::vector<std::shared_ptr<ParamGroup>> kept_;  // none of them has parameters or keeps others
  int depth_ = 0;

  GatherState state_ = GatherState::kSharded;
  std::vector<std::shared_ptr<Work>> gathers_;  // the all-gathers of the whole buffers, kept as long as the buffers
  int64_t version_in_copy_ = 0;
  std::optional<int64_t> published_version_;
  std::shared_ptr<const c10::Event> rows_written_;  // see gather_after; if null, gathers follow the current stream
  // Numbers of gathers that moved nothing, because ranks share memory: all, and those before the open backward. A
  // reduction compares the second number between ranks.
  uint32_t gathers_in_place_ = 0, gathers_before_backward_ = 0;

  bool is_in_hook_ = false;
  // Facts about the open backward: a reduction was finished since the hook's last call; the hook was called; the
  // outermost task gives gradients.
  bool has_news_ = false, is_handed_out_ = false, expects_gradients_ = false;
  std::vector<int> tasks_;
  std::vector<Bucket> buckets_;
  // Reduced gradients in the form of the rows, which finish_landing adds to `.grad`, and for each parameter 1 if any
  // rank has a gradient, otherwise 0.
  std::vector<std::pair<ReducedPlane, std::vector<uint8_t>>> landings_;
  std::string error_;  // message of an error of the open backward, which is thrown when the backward ends

  int64_t version_ = 0;
  WriteCounts writes_;
  ReadEpochs epochs_;
};

/// Unshards `groups`, which an operator is about to read. Frees other groups and gathers the next ones ahead.
void read_groups(RankState& rank, std::span<ParamGroup* const> groups) FSDP_REQUIRES(rank.mutex);

/// Sets the hooks that take whole gradients; a part of `hook_parameters` (backward.h).
void hook_gradients(const std::shared_ptr<ParamGroup>& group);

/// Locks the rank states of the groups, always in the same order, so that two threads cannot wait for each other.
[[nodiscard]] std::vector<std::unique_lock<RankLock>> lock_ranks(const std::vector<ParamGroup*>& groups);

}  // namespace fsdp::runtime
