#pragma once
/// \file
/// The parameters that are gathered and reduced together.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/backward_tasks.h"
#include "runtime/group_backward.h"
#include "runtime/group_identity.h"
#include "runtime/residency.h"
#include "runtime/row_lock.h"
#include "runtime/sharded_params.h"

namespace fsdp {
class ModuleWatch;
}

namespace fsdp::runtime {

/// What `fully_shard` decided about a group; may change between iterations.
struct GroupPolicy {
  /// Unset: always, never for the outermost group of a scope.
  std::optional<bool> reshard_after_forward;
  bool reshard_after_backward = true;
  /// What stays after backward goes when rows are written; without it the memory stays, for the next gather.
  bool free_when_written = true;
  bool requires_gradient_sync = true;
  /// Wait for reductions at the end of backward.
  bool is_last_backward = true;
  /// Gather again in backward; without it whole parameters stay from forward to backward.
  bool unshard_in_backward = true;
  /// Take part in the reduction of a backward even if forward never reached the group.
  bool reduces_unused = false;
  /// Where every rank has all rows: how many bytes of gradients are reduced together, at most.
  int64_t bucket_cap_bytes = int64_t{25} << 20;
  ReductionPolicy reduction;
  /// Gets the parameters that have a gradient as soon as the group's are complete.
  std::function<void(const std::vector<at::Tensor>& parameters)> post_accumulate_grad_hook = {};
  /// Of whole parameters that are gathered ahead while this group is read; unset: one group, or two inside this one.
  std::optional<int64_t> max_prefetched_bytes = std::nullopt;
  /// Buffers are rank 0's when a forward begins; what the user said of that, else the strategy says it.
  bool broadcasts_buffers = false;
  std::optional<bool> told_to_broadcast = std::nullopt;
  /// In which rows, gradients and optimizer state are kept in files; empty: they are in memory.
  std::string disk_folder = {};
  /// Where rows, gradients and optimizer state are otherwise.
  RowMemory row_memory = RowMemory::kBesideWhole;
  /// What they are expected to take on a rank, the same on every rank.
  int64_t expected_bytes = 0;
  /// Of floating-point arguments and results of a call of the module's handle; unset: as they are.
  std::optional<c10::ScalarType> input_dtype = std::nullopt, output_dtype = std::nullopt;
  /// Groups to prefetch, instead of the recorded order.
  std::vector<GroupId> forward_prefetch, backward_prefetch;
};

/// What follows from a placement. They have one idea each.
struct Parts {
  Parts(GroupIdentity who, const std::vector<GroupMember>& parameters, const GroupPolicy& policy,
        const FormChange& change = {});
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  GroupIdentity identity;
  const std::string disk_folder;  // as GroupPolicy has it
  ShardedParams params;
  RowLock row_lock;
  Residency residency;
  GroupBackward backward;
};

/// One `fully_shard` call. Owned by its parameters (the hook stored on each tensor holds it), which it refers to
/// weakly, and by nodes of graphs. What concerns several of its parts is here. Thread safety: every method is called
/// under `rank_state().mutex`.
class ParamGroup : public std::enable_shared_from_this<ParamGroup> {
 public:
  struct Spec {
    std::string name;
    std::vector<GroupMember> parameters;
    Placement placement;
    std::shared_ptr<RankState> rank_state;
    GroupPolicy policy;
    /// The modules that have the parameters, by address.
    std::vector<const void*> modules = {};
  };
  /// Decides where the parameters lie, and changes nothing. Memory comes with `FlatParams::allocate_shard`.
  static std::shared_ptr<ParamGroup> create(const Spec& spec);
  ~ParamGroup() { rank_state().remove(id()); }
  ParamGroup(const ParamGroup&) = delete;
  ParamGroup& operator=(const ParamGroup&) = delete;

  GroupId id() const { return parts_->identity.id; }
  const std::string& name() const { return parts_->identity.name; }
  const GroupIdentity& identity() const { return parts_->identity; }
  const Placement& placement() const { return parts_->identity.placement; }
  RankState& rank_state() const { return *rank_state_; }
  /// Of a collective on this group.
  Tag tag(std::string subject) const { return parts_->identity.tag(std::move(subject)); }
  std::string where(const std::string& operation) const { return parts_->identity.where(operation); }

  Parts& parts() { return *parts_; }
  ShardedParams& params() { return parts_->params; }
  std::vector<ParamSlot>& slots() { return parts_->params.slots(); }
  std::vector<FlatParams>& flats() { return parts_->params.flats(); }
  RowLock& row_lock() { return parts_->row_lock; }
  Residency& residency() { return parts_->residency; }
  GroupBackward& backward() { return parts_->backward; }
  const GroupBackward& backward() const { return parts_->backward; }

  /// Names seen from a module further out, for messages.
  void rename(std::string name) { parts_->identity.name = std::move(name); }
  void rename_slot(size_t slot, std::string name);
  /// `parent`: the group of the module next around this group's. A module in two others has two.
  void add_parent(const ParamGroup& parent) {
    const std::lock_guard lock(rank_state().mutex);
    rank_state().tree.add_parent(id(), parent.id());
  }
  /// `other`, which has no parameters that could keep it, lives as long as this group from now on.
  void keep(std::shared_ptr<ParamGroup> other) {
    if (!keeps(*other)) kept_.push_back(std::move(other));
  }
  /// Whether that is this group, or one that lives as long as it.
  bool keeps(const ParamGroup& other) const {
    return this == &other || std::ranges::any_of(kept_, [&](const auto& kept) { return kept.get() == &other; });
  }
  /// Whether some of its parameters were found in this very module.
  bool took_from(const void* module) const { return std::ranges::find(modules_, module) != modules_.end(); }

  /// Whole parameters of this group stay after they were read in forward.
  bool stays_after_forward() const;
  /// Whole parameters of this group stay after its backward.
  bool stays_after_backward() const;

  // What parameters show: a count of open scopes and open graph tasks.
  bool is_inside() const { return depth_ > 0; }
  /// Whether the next call of `leave` will be the last.
  bool is_left_next() const { return depth_ == 1; }
  bool is_in_scope() const { return depth_ > static_cast<int>(parts_->backward.tasks().size()); }
  void enter();
  void leave();
  /// A graph task enters the group: parameters show whole values, and the first one opens its backward.
  void enter_backward(int task, bool (*expects)(const ParamSlot&), bool may_recompute);
  /// What ranks compare when they reduce the group: replicas the writes to its rows, and ranks that share memory, which
  /// no gather has told apart, the gathers until the backward began.
  Tag::Count count_to_compare() {
    if (placement().replicas() == 1) return {gathers_before_backward_, "gathers of the group before the backward"};
    return {static_cast<uint32_t>(row_lock().writes().total()), kWritesToRows};
  }
  /// Calls the user's hook of complete gradients, if there is one, in the middle of a backward: parameters show rows,
  /// as outside, and may be written. The backward reads them no more.
  void call_post_accumulate_grad_hook();
  /// While that hook runs.
  bool is_in_hook() const { return is_in_hook_; }
  /// Throws UsageError if the hook has been called in the open backward, which read what the hook may have written.
  void require_not_handed_out() const;
  /// The last scope or backward has closed: this rank reads on while a graph may.
  void leave_reading() { row_lock().end_scopes(slots(), scope && (scope->recorded || scope->is_hidden)); }

  /// Call before rows are written, those of one slot or of all: see RowLock::note_write. Whole values are old then.
  void note_write(WriteKind kind, std::optional<size_t> slot = std::nullopt);

  /// Rows were written until now, after note_write, and nobody read them meanwhile.
  void end_write();

  /// Whether a backward reduces: where every rank has all rows, nothing is left of it without the all-reduce.
  bool reduces() const {
    return policy.requires_gradient_sync && (policy.reduction.all_reduces || !placement().is_replicated_only());
  }
  /// Whether nothing is open on it, neither a scope nor a backward, and this thread runs no backward, unless that calls
  /// the group's hook.
  bool is_at_rest() const;
  /// Throws UsageError unless it is.
  void require_at_rest(const std::string& operation) const;
  /// Throws UsageError while gradients of earlier backwards wait for their reduction or for the end of one.
  void require_no_waiting_gradients(const std::string& operation) const;
  /// The same if that of the slot may be among them.
  void require_no_waiting_gradient(size_t slot, const std::string& operation) const {
    if (backward().has_gradient(slot) || backward().has_late_reductions()) require_no_waiting_gradients(operation);
  }

  /// Parts of the same group over another placement or of another form, of which it knows nothing as yet.
  std::unique_ptr<Parts> parts_over(const Placement& placement, const GroupPolicy& by, const FormChange& change = {});
  /// The group is made of `parts` from now on, by `policy`: its parameters show the rows there. Views of the rows that
  /// it had throw when they are used. Outside.
  void move_to(std::unique_ptr<Parts> parts, const GroupPolicy& to);

  /// Makes each parameter's storages and tensors those of a new iteration, whatever happened before.
  void reset();

  GroupPolicy policy;
  int local_rows_depth = 0;
  int summon_depth = 0;
  /// Whether the user was told what would serve the group better.
  bool was_hinted = false;
  /// The outermost scope that was opened last.
  std::shared_ptr<ScopeRecord> scope;
  /// Of the group's module, for the layer above; null for TorchScript.
  std::shared_ptr<ModuleWatch> watch;

 private:
  explicit ParamGroup(const Spec& spec);
  void forget_whole();

  const std::shared_ptr<RankState> rank_state_;  // whose lock is taken before parts are read
  std::unique_ptr<Parts> parts_;
  std::vector<const void*> modules_;
  std::vector<std::shared_ptr<ParamGroup>> kept_;  // none of them has parameters or keeps others
  int depth_ = 0;
  uint32_t gathers_before_backward_ = 0;
  bool is_in_hook_ = false;
};

/// The locks of the groups' ranks, in one order, so that two threads cannot wait for each other.
[[nodiscard]] std::vector<std::unique_lock<RankLock>> lock_ranks(const std::vector<ParamGroup*>& groups);

}  // namespace fsdp::runtime
