#pragma once
/// \file
/// The parameters that are gathered and reduced together.

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
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

/// Counts the operators, on any thread, that compute with a group's unsharded parameters, which stay until they end.
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
  /// Lets the rank's lock go until there are none. Returns whether it did: others may have done something meanwhile. A
  /// thread that is inside of an operator, which its own wait would keep from ending, waits for none.
  bool wait_until_gone(RankLock& lock) {
    if (!are_there() || own_ > 0) return false;
    fault_point("waiting for operators");
    const RankLock::ScopedRelease others_go_on(lock);
    for (int count = count_; count > 0; count = count_) count_.wait(count);
    return true;
  }

 private:
  static inline constinit thread_local int own_ = 0;  // of this thread, of all groups
  std::atomic<int> count_ = 0;
};

enum class GatherState : uint8_t { kSharded, kGathering, kWhole };

/// What is reduced together, see Note [Order of buckets].
struct Bucket {
  bool is_begun = false;      // whether the open backward has begun its reduction; what arrives later is reduced again
  size_t missing = 0;         // gradients that the outermost graph task has yet to give
  size_t missing_inside = 0;  // those that backwards inside it give, if they run
  std::optional<Reduction> in_flight = {};  // an earlier backward's until this one starts its own
  PartialSum partial_sum = {};

  bool is_complete() const { return missing == 0 && missing_inside == 0; }
};

/// One `fully_shard` call, and its step, which step.cpp has in the order of time. Owned by its parameters (the hook
/// stored on each tensor holds it), which it refers to weakly, and by nodes of graphs. Thread safety: every method is
/// called under `rank_state().mutex`.
class ParamGroup : public std::enable_shared_from_this<ParamGroup> {
 public:
  /// Decides where the parameters lie, and changes nothing. Memory comes with `FlatParams::allocate_shard`.
  static std::shared_ptr<ParamGroup> create(const GroupSpec& spec);
  ~ParamGroup();
  ParamGroup(const ParamGroup&) = delete;
  ParamGroup& operator=(const ParamGroup&) = delete;

  GroupId id() const { return id_; }
  const std::string& name() const { return name_; }
  const Placement& placement() const { return params_->placement; }
  RankState& rank_state() const { return *rank_state_; }
  const std::shared_ptr<RankState>& shared_rank_state() const { return rank_state_; }
  const std::shared_ptr<memory::ByteAccount>& account() const { return account_; }
  /// Of a collective on this group. `call`: what messages say that it is of, a call of the user's if there is one.
  Tag tag(std::string subject, uint32_t writes = 0, const std::string& call = {}) const;
  std::string where(const std::string& operation) const { return placement().where(operation); }
  /// Names seen from a module further out, for messages.
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

  /// `parent`: the group of the module next around this group's.
  void add_parent(const ParamGroup& parent) {
    auto& rank = rank_state();
    const MutexLock lock(rank.mutex);
    rank.tree.add_parent(id(), parent.id());
  }
  /// `other`, which has no parameters that could keep it, lives as long as this group from now on.
  void keep(std::shared_ptr<ParamGroup> other) {
    if (!keeps(*other)) kept_.push_back(std::move(other));
  }
  bool keeps(const ParamGroup& other) const {
    return this == &other || std::ranges::any_of(kept_, [&](const auto& kept) { return kept.get() == &other; });
  }

  /// Whether whole parameters stay after they were read in forward; after its backward.
  bool stays_after_forward() const;
  bool stays_after_backward() const;

  // Parameters show whole values while a scope or a graph task is open on the group.
  bool is_inside() const { return depth_ > 0; }
  bool is_left_next() const { return depth_ == 1; }
  bool is_in_scope() const { return depth_ > static_cast<int>(tasks_.size()); }
  void enter();
  void leave();

  GatherState state() const { return state_; }
  /// kSharded -> kGathering, or kSharded if it throws; nothing in other states. `call`: the user's, if there is one.
  void unshard(const std::string& call = {});
  /// kSharded, kGathering -> kWhole, for the current stream to read; if it throws: kSharded.
  void wait_for_unshard(const std::string& call = {});
  /// -> kSharded, after waiting for operators (see Pins); where it may not wait, the parameters stay until the next
  /// scope opens.
  void reshard();
  /// kWhole -> kSharded, with a second shard among the placement's neighbours, if it has any.
  void reshard_within();
  /// kWhole, in memory that only this rank sees from now on; if it throws: kSharded.
  void copy_whole();
  /// Drops a whole copy that is older than the last write to the rows.
  void drop_stale_copy() {
    if (version_in_copy_ != version_) reshard();
  }
  /// Until rows are written again, gathers of them come after `event` alone.
  void gather_after(std::shared_ptr<const c10::Event> event);
  bool wait_for_operators() { return pins.wait_until_gone(rank_state().mutex); }

  // While a backward is open, autograd writes whole gradients to `.grad` and the rows' gradients are parked. A
  // parameter that some rank used gets a gradient on every rank, one that no rank used keeps `.grad` as it was. A
  // backward that is not the last may close while reductions are in flight: their results are added by the one in
  // which somebody waits for them.
  /// Graph tasks that entered the group, the outermost first.
  const std::vector<int>& tasks() const { return tasks_; }
  bool is_in_backward() const { return is_in_backward_; }
  bool has_task(int task) const { return std::ranges::find(tasks_, task) != tasks_.end(); }
  bool has_only_task(int task) const { return tasks_.size() == 1 && tasks_.front() == task; }
  /// A graph task enters the group: parameters show whole values. The first one opens the backward, and will give
  /// gradients to the slots that it `expects`. Where it `may_recompute`, others that were read unrecorded get theirs
  /// from backwards inside it.
  void enter_backward(int task, bool (*expects)(const ParamSlot&), bool may_recompute);
  /// The last of them closes the backward: `.grad` holds the rows' gradients. Returns what is to be thrown then.
  [[nodiscard]] std::string leave_backward(int task);
  void add_gradient(size_t slot, at::Tensor gradient, bool from_inside);
  const std::vector<Bucket>& buckets() const { return buckets_; }
  bool expects_gradients() const { return expects_gradients_; }
  /// Whether gradients, or the sum of some within the replica, wait for a reduction, also since an earlier backward.
  bool has_gradients() const {
    const auto keeps_sum = [](const Bucket& bucket) { return bucket.partial_sum.reductions > 0; };
    return std::ranges::any_of(params_->slots(), &ParamSlot::waits) || std::ranges::any_of(buckets_, keeps_sum);
  }
  /// Whether a backward reduces: where every rank has all rows, nothing is left of it without the all-reduce.
  bool reduces() const {
    return policy.requires_gradient_sync && (policy.reduction.all_reduces || !placement().is_replicated_only());
  }
  /// Starts to reduce what has arrived, after waiting for a reduction in flight. Collective.
  void start_reduction(size_t bucket);
  /// Waits for all that are in flight, those of earlier backwards too, and adds the results to the rows' gradients.
  /// Then it calls the hook of complete gradients, if this is the last backward.
  void finish_reductions();
  /// Adds what was reduced to the rows' gradients, for which the host waits. Throws if a device failed meanwhile.
  void finish_landing();
  void drop_gradients();
  void forget_reads();
  /// Whether set_post_accumulate_grad_hook's hook runs: parameters then show rows, which it may write.
  bool is_in_hook() const { return is_in_hook_; }
  /// Throws UsageError if the hook has been called in the open backward, which read what the hook may have written.
  void require_not_handed_out() const;

  // When this rank may read and write rows: see Note [Readers and writers of rows].
  /// A scope opens on the group. Returns whether the ranks must meet before they read.
  bool begin_scope();
  /// Takes begin_scope back, because the ranks did not meet: each rank must have counted the same scopes.
  void cancel_scope();
  /// The last scope or backward has closed: this rank reads on while a graph may.
  void leave_reading();
  /// This rank writes, or forgets its iteration: no graph from before reads any more.
  void end_read();
  /// Lets peers write: this rank is about to. Call it for all groups that are written together before waiting for the
  /// first, or ranks meet at each of them. Throws UsageError in a scope or a backward of another thread.
  void begin_write();
  /// The same, and waits until no peer reads the rows, without the rank's lock. Returns whether it did.
  bool wait_to_write();
  /// Call before rows are written, those of one slot or of all; waits to write. Whole values are old then.
  void prepare_write(WriteKind kind, std::optional<size_t> slot = std::nullopt);
  /// Makes whole copies stale. `prepare_write` calls it; call it again after rows were written if that took longer than
  /// one operator.
  void note_write();
  int64_t version() const { return version_; }
  WriteCounts& writes() { return writes_; }
  /// Threads that open a scope and wait for the other ranks: until they have entered, this rank reads.
  int openings = 0;

  /// No scope or backward is open on it, and this thread runs no backward but one that calls the group's hook.
  bool is_at_rest() const;
  void require_at_rest(const std::string& operation) const;
  /// Throws UsageError while gradients of earlier backwards wait for their reduction or for the end of one.
  void require_no_waiting_gradients(const std::string& operation) const;
  void require_no_waiting_gradient(size_t slot, const std::string& operation);

  /// The same parameters over another placement or of another form, as yet without memory.
  std::unique_ptr<ShardedParams> lay_out(const Placement& placement, const GroupPolicy& by,
                                         const FormChange& change = {});
  /// The group has `params` and the policy `to` from now on. Views of its former rows throw when they are used.
  void move_to(std::unique_ptr<ShardedParams> params, const GroupPolicy& to);

  /// Makes each parameter's storages and tensors those of a new iteration, whatever happened before.
  void reset();

  GroupPolicy policy;
  Pins pins;
  /// So far: gathers that moved data, those among neighbours, and reductions, one a bucket. Read without the lock.
  std::atomic<int64_t> gathers = 0, gathers_within = 0, reductions = 0;
  int local_rows_depth = 0;
  int summon_depth = 0;
  bool unshard_was_asked = false;
  uint64_t first_read = 0;             ///< its place in its scope's order, by which backwards reduce; 0: not read
  std::shared_ptr<ScopeRecord> scope;  ///< the outermost one that was opened last
  std::vector<std::weak_ptr<torch::nn::Module>> watched;  ///< the group's modules that shared pointers own
  std::unordered_set<const void*> modules;  ///< addresses of the group's module and of all inside it, at fully_shard

 private:
  explicit ParamGroup(const GroupSpec& spec);
  Span span(std::string_view name) const;

  void publish();
  std::optional<c10::Stream> stream_of_gather();
  void gather_rows(bool moves, const std::string& call);
  void start_gathers(Communicator& ranks, const Tag& tag, const AllGather& with, bool within);
  void order_read();
  bool has_second_shard();
  void drop_whole_buffers();

  void expect_gradients(bool (*expects)(const ParamSlot&), bool may_recompute);
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

  const std::shared_ptr<RankState> rank_state_;  // whose lock is taken before what follows is read
  const std::shared_ptr<memory::ByteAccount> account_;
  std::string name_;
  GroupId id_ = 0;
  std::unique_ptr<ShardedParams> params_;
  std::vector<std::shared_ptr<ParamGroup>> kept_;  // none of them has parameters or keeps others
  int depth_ = 0;

  GatherState state_ = GatherState::kSharded;
  std::vector<std::shared_ptr<Work>> gathers_;  // in flight, and as long as their results are there
  int64_t version_in_copy_ = 0;
  std::optional<int64_t> published_version_;
  std::shared_ptr<const c10::Event> rows_written_;  // null: in the order of the current stream
  // Gathers that moved nothing, because ranks share memory. Ranks count them alike, as if they had met for them.
  uint32_t gathers_in_place_ = 0, gathers_before_backward_ = 0;

  bool is_in_backward_ = false, is_in_hook_ = false;
  // In the open backward: reduced since the user had gradients; the user had some; the outermost task gives some.
  bool has_news_ = false, is_handed_out_ = false, expects_gradients_ = false;
  std::vector<int> tasks_;
  std::vector<Bucket> buckets_;
  // What was reduced, in the form of the rows, on its way to their gradients; and the votes of all ranks.
  std::vector<std::pair<ReducedPlane, std::vector<uint8_t>>> landings_;
  std::string error_;  // of the open backward, thrown when it ends

  int64_t version_ = 0;
  WriteCounts writes_;
  ReadEpochs epochs_;
};

/// An operator reads `groups` of the rank next: they become whole, others are freed or gathered ahead.
void read_groups(RankState& rank, std::span<ParamGroup* const> groups) FSDP_REQUIRES(rank.mutex);

/// Hooks that take whole gradients, of `hook_parameters` (backward.h).
void hook_gradients(const std::shared_ptr<ParamGroup>& group);

/// The locks of the groups' ranks, in one order, so that two threads cannot wait for each other.
[[nodiscard]] std::vector<std::unique_lock<RankLock>> lock_ranks(const std::vector<ParamGroup*>& groups);

}  // namespace fsdp::runtime
