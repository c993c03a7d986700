#pragma once
/// \file
/// The parameters that are gathered and reduced together, and their state machine.

#include <fsdp/process_group.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "memory/memory_range.h"
#include "runtime/flat_params.h"
#include "runtime/gradient_reducer.h"
#include "runtime/param_slot.h"
#include "runtime/rank_state.h"
#include "runtime/reading.h"
#include "runtime/schedule.h"

namespace fsdp {
class ModuleWatch;
}

namespace fsdp::runtime {

struct ScopeRecord;

/// Whether whole parameters are in memory.
enum class GatherState : uint8_t { kSharded, kGathering, kWhole };

/// What `fully_shard` decided about a group; may change between iterations.
struct GroupPolicy {
  /// Unset: always, never for the outermost group of a scope.
  std::optional<bool> reshard_after_forward;
  bool reshard_after_backward = true;
  bool requires_gradient_sync = true;
  /// Gather again in backward; without it whole parameters stay from forward to backward.
  bool unshard_in_backward = true;
  /// Take part in the reduction of a backward even if forward never reached the group.
  bool reduces_unused = false;
  /// Groups to prefetch, instead of the recorded order.
  std::vector<GroupId> forward_prefetch, backward_prefetch;
};

/// Who writes rows: every rank, as optimizers do, or perhaps this one alone.
enum class WriteKind : uint8_t { kEveryRank, kThisRank };

/// Counts since the group was made. May be read without the lock.
struct GroupCounts {
  std::atomic<int64_t> gathers = 0;  // that moved data
  std::atomic<int64_t> reductions = 0;
};

/// One `fully_shard` call. Owned by its parameters (the hook stored on each tensor holds it), which it refers to weakly,
/// and by nodes of graphs.
/// Thread safety: every method is called under `rank_state().mutex`.
class ParamGroup : public std::enable_shared_from_this<ParamGroup> {
 public:
  struct Spec {
    std::string name;
    std::vector<NamedParameter> parameters;
    std::shared_ptr<ProcessGroup> process_group;
    std::shared_ptr<RankState> rank_state;
    GroupPolicy policy;
    /// The modules that have the parameters, by address.
    std::vector<const void*> modules = {};
  };
  /// Decides where the parameters lie, and changes nothing. Memory comes with `FlatParams::allocate_shard`.
  static std::shared_ptr<ParamGroup> create(const Spec& spec);
  /// Copies this rank's rows out of `values`, the whole ones; the parameters stay as they are until `install`.
  void take_rows(const std::vector<NamedParameter>& parameters, const std::vector<at::Tensor>& values);
  /// Makes the parameters show this rank's rows. From now on they own the group. Once; not collective.
  void install();
  ~ParamGroup();
  ParamGroup(const ParamGroup&) = delete;
  ParamGroup& operator=(const ParamGroup&) = delete;

  GroupId id() const { return id_; }
  /// Of a collective on this group.
  Tag tag(std::string subject, std::vector<uint8_t> votes = {}, uint32_t writes = 0) const {
    const Tag::Count count{writes, "writes to the rows (optimizer steps)"};
    return {std::move(subject), std::move(votes), count, static_cast<uint32_t>(id_)};
  }
  const std::string& name() const { return name_; }
  RankState& rank_state() const { return *rank_state_; }
  const std::shared_ptr<RankState>& rank_state_ptr() const { return rank_state_; }
  ProcessGroup& process_group() const { return *process_group_; }
  std::vector<ParamSlot>& slots() { return slots_; }
  /// The flat parameters that a slot lies in, and its index in their layout.
  struct Place {
    size_t flat = 0, item = 0;
  };
  Place place(size_t slot) const { return places_[slot]; }
  std::vector<FlatParams>& flats() { return flats_; }
  bool is_on_cpu() const {
    return std::ranges::all_of(flats_, [](const FlatParams& flat) { return flat.device().is_cpu(); });
  }
  GradientReducer& reducer() { return reducer_; }
  /// Names seen from a module further out, for messages.
  void rename(std::string name) { name_ = std::move(name); }
  void rename_slot(size_t slot, std::string name);
  /// "[fsdp rank 0/2] operation: "
  std::string where(const std::string& operation) const;

  /// `parent`: the group of the module next around this group's. A module in two others has two.
  void add_parent(ParamGroup& parent);
  const std::vector<GroupId>& parents() const { return parents_; }
  /// Whether some of its parameters were found in this very module.
  bool took_from(const void* module) const { return std::ranges::find(modules_, module) != modules_.end(); }

  // Whole parameters.
  GatherState gather_state() const { return gather_state_; }
  void start_gather();   // kSharded -> kGathering, else nothing; if it throws: kSharded
  void finish_gather();  // kSharded, kGathering -> kWhole; if it throws: kSharded
  /// Of a group that is whole: see FlatParams.
  void order_read() {
    for (auto& flat : flats_) flat.order_read();
  }
  void free_whole();     // -> kSharded
  void copy_whole();     // -> kWhole, where ranks share memory: in memory that only this rank sees; as start_gather
  /// Whole parameters of this group stay after they were read in forward.
  bool stays_after_forward() const;
  /// Whole parameters of this group stay after its backward.
  bool stays_after_backward() const;
  /// Drops a whole copy that is older than the last write to the rows.
  void drop_stale_copy();

  // See Note [Whose turn it is].
  Reading& reading() const { return *reading_; }
  /// A scope opens on the group; true if the ranks must meet before they read.
  bool begin_scope();
  /// The ranks did not meet, so that every rank has counted the same scopes.
  void cancel_scope();
  /// Threads that open a scope and wait for the other ranks: until they have entered, this rank reads.
  int openings = 0;
  /// A backward begins: it reads what its scope saw, and what every rank has written since.
  void resume_reading();
  /// The last scope or backward has closed: this rank reads on while a graph may.
  void leave_reading();
  void end_reading() { reading_->end(); }
  /// Throws UsageError while gradients of a backward without synchronisation wait for their reduction.
  void require_no_waiting_gradients(const std::string& operation) const;
  /// The same if that of the slot is among them.
  void require_no_waiting_gradient(size_t slot, const std::string& operation) const {
    if (slots_[slot].arrived_gradient.defined()) require_no_waiting_gradients(operation);
  }
  /// Waits until no peer reads the rows, without the rank's lock. Returns whether it did, so that others may have done
  /// something meanwhile. Throws UsageError in a scope or a backward of another thread.
  bool wait_to_write();
  /// Call before rows are written, those of one slot or of all; waits to write.
  void note_write(WriteKind kind, std::optional<size_t> slot = std::nullopt);
  /// How often every rank has written rows since this was asked last: the most that any one parameter was, so that
  /// ranks without rows of some parameters count alike.
  uint32_t take_writes();
  /// What was taken did not reach the other ranks.
  void give_back_writes(uint32_t writes) { writes_by_all_ += writes; }
  /// All that were counted, the same on every rank that ran the same program.
  int64_t total_writes() const { return total_writes_; }

  // What parameters show: a count of open scopes and open graph tasks.
  bool is_inside() const { return depth_ > 0; }
  bool is_in_scope() const { return depth_ > static_cast<int>(open_tasks.size()); }
  void enter();
  void leave();

  // `.grad` holds whole gradients while a backward is open; the rows' gradients are parked.
  void park_gradients();
  /// Adds the rows' gradient that a reduction gave to the parked one.
  void accumulate_gradient(size_t slot, at::Tensor gradient);
  void unpark_gradients();
  /// No rows have a gradient any more.
  void drop_gradients();

  /// A scope opens: nothing of the group was read in it.
  void forget_reads();
  /// Makes each parameter's storages and tensors those of a new iteration, whatever happened before.
  void reset();

  /// Operators that compute with whole parameters at the moment, on any thread; they keep their memory.
  std::atomic<int> pins{0};
  GroupPolicy policy;
  GroupCounts counts;
  bool unshard_was_asked = false;
  int local_rows_depth = 0;
  int summon_depth = 0;
  /// The outermost scope that was opened last, and this group's place in its order of first reads (0: not read).
  std::shared_ptr<ScopeRecord> scope;
  uint64_t first_read = 0;
  /// Graph tasks that entered the group.
  std::vector<int> open_tasks;
  /// Whether the open backward has started this group's reduction.
  bool reduced_in_task = false;
  /// Parameters that `fully_shard` was told to leave alone; all groups of one call have the same list.
  using Ignored = std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>>;
  std::shared_ptr<const Ignored> ignored;
  /// Of the group's module, for the layer above; null for TorchScript.
  std::shared_ptr<ModuleWatch> watch;
  /// Predictions, used by the outermost group of a scope.
  ReadOrder forward_order, backward_order;

 private:
  explicit ParamGroup(const Spec& spec);
  void place_parameters(const std::vector<NamedParameter>& parameters);
  void leave_to_others(const c10::Storage& former, const memory::MemoryRange& range, const ParamSlot& slot);
  void register_gradient(size_t slot, const at::Tensor& gradient);
  void attach_whole();
  void detach_whole();
  void become_whole();
  void abandon_gather();
  void drop_whole_buffers();
  uint64_t epoch() const { return (scopes_ << 32) + backwards_after_writes_; }

  GroupId id_;
  std::string name_;
  std::shared_ptr<ProcessGroup> process_group_;
  std::shared_ptr<RankState> rank_state_;
  std::vector<const void*> modules_;
  std::vector<GroupId> parents_;
  std::vector<std::shared_ptr<ParamGroup>> kept_alive_;  // parents without parameters, which own nothing below them
  std::vector<ParamSlot> slots_;
  std::vector<Place> places_;
  std::vector<FlatParams> flats_;
  std::shared_ptr<Reading> reading_ = std::make_shared<Reading>();
  GradientReducer reducer_{*this};
  std::string gradient_error_;  // of the open backward, thrown when it ends
  GatherState gather_state_ = GatherState::kSharded;
  uint64_t gather_number_ = 0;  // of the last one that was started
  int depth_ = 0;
  int64_t writes_ = 0, writes_in_copy_ = 0;
  uint32_t writes_by_all_ = 0;  // since the last gather or scope
  uint32_t writes_told_ = 0;    // by the gather in flight
  // Since the last gather or scope: writes to all slots at once, the others to each slot, and the most of these.
  uint32_t writes_to_all_slots_ = 0;
  std::vector<uint32_t> writes_to_slot_;
  uint32_t most_to_slot_ = 0;
  int64_t total_writes_ = 0;
  bool every_rank_has_rows_ = false;        // else an update by hand may leave out ranks, so writes are not counted
  uint64_t scopes_ = 0;                     // opened so far, the same on every rank
  uint64_t backwards_after_writes_ = 0;     // since the last scope opened
  bool is_written_by_all_ = false;          // since the last scope or backward opened
  bool has_to_meet_ = false;                // where ranks share memory: before this backward reads
  uint64_t written_in_epoch_ = UINT64_MAX;  // whose readers no longer keep this rank from writing
};

}  // namespace fsdp::runtime
