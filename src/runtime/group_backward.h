#pragma once
/// \file
/// A group in backward: what graph tasks will give it, what has arrived, what is parked and what was reduced.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memory/handed_on.h"
#include "runtime/expectations.h"
#include "runtime/group_identity.h"
#include "runtime/reduction.h"
#include "runtime/sharded_params.h"

namespace fsdp::runtime {

/// kReducing and kReduced: of the open backward; what arrives later is reduced once more.
enum class BackwardState : uint8_t { kClosed, kCollecting, kReducing, kReduced };

/// While a backward is open, `.grad` holds whole gradients and the rows' gradients are parked here. A parameter that
/// some rank used gets a gradient on every rank, one that no rank used keeps `.grad` as it was. The gradients handed
/// out are parts of one buffer. Thread safety: under the rank's lock.
class GroupBackward {
 public:
  GroupBackward(const GroupIdentity& group, ShardedParams& params)
      : group_(group), params_(params), reduction_(reduction_over(group.placement)), slots_(params.count()) {}

  // Graph tasks that entered the group, the outermost first.
  const std::vector<int>& tasks() const { return tasks_; }
  bool is_open() const { return state_ != BackwardState::kClosed; }
  bool has(int task) const { return std::ranges::find(tasks_, task) != tasks_.end(); }
  /// Whether no other backward goes through the group.
  bool has_only(int task) const { return tasks_.size() == 1 && tasks_.front() == task; }
  /// The first of them will give gradients to the slots that it `expects`; kClosed -> kCollecting. Where it
  /// `may_recompute`, others that were read unrecorded get theirs from backwards inside it.
  void enter(int task, bool (*expects)(const ParamSlot&), bool may_recompute);
  /// After the last of them `.grad` holds the rows' gradients; -> kClosed. Returns what is to be thrown then.
  [[nodiscard]] std::string leave(int task);

  /// What is missing in the open backward.
  const Expectations& expectations() const { return expectations_; }
  /// Adds a whole gradient, dense or sparse.
  void add(size_t slot, at::Tensor gradient, bool from_inside);
  /// Whether gradients wait for a reduction, also since an earlier backward without one; that of one slot.
  bool has_gradients() const { return waiting_ > 0; }
  bool has_gradient(size_t slot) const { return slots_[slot].arrived.defined(); }
  /// Of the whole gradients that arrived in the open backward on the CPU.
  int64_t arrived_bytes();

  /// Whether the open backward has started a reduction.
  bool is_reduced() const { return state_ == BackwardState::kReducing || state_ == BackwardState::kReduced; }
  /// Of what has arrived; kCollecting, kReduced -> kReducing. Waits for one in flight. Collective.
  /// `writes`: to the rows so far, which replicas compare.
  void start_reduction(std::optional<double> divide_factor, uint32_t writes);
  /// Waits for it and adds the result to the rows' gradients; kReducing -> kReduced, else nothing.
  void finish_reduction();
  /// Reductions so far. May be read without the lock.
  int64_t reductions() const { return reductions_; }

  /// A scope opens: nothing of the group was read in it.
  void forget_reads();
  /// Forgets an iteration; -> kClosed. Returns how many graph tasks had entered the group.
  size_t reset();
  /// No rows have a gradient any more.
  void drop_gradients();
  /// An operator read the whole parameter in the scope, and autograd did not record it.
  void note_unrecorded_read(size_t slot) { slots_[slot].was_read_unrecorded = true; }
  /// The group's place in its scope's order of first reads, by which backwards reduce; 0: not read.
  uint64_t first_read = 0;

 private:
  struct Slot {
    at::Tensor parked;  // the rows' gradient while a backward uses `.grad`
    // The whole gradient that waits for its reduction, and its bytes on the account. Autograd accumulates on the stream
    // of the parameter's first use in forward, so one group's gradients may arrive on several.
    memory::HandedOn arrived;
    memory::Charge charge;
    bool has_arrived = false;  // in the open backward
    bool was_read_unrecorded = false;
  };

  void open(bool (*expects)(const ParamSlot&), bool may_recompute);
  void close();
  bool trains(size_t flat);
  Contribution take_contribution(size_t flat);
  std::vector<ReductionInFlight> take_in_flight();
  void hand_out(ReductionInFlight& reduced);
  void add_to_parked(size_t slot, at::Tensor gradient);

  const GroupIdentity& group_;
  ShardedParams& params_;
  const std::unique_ptr<const Reduction> reduction_;
  BackwardState state_ = BackwardState::kClosed;
  std::vector<int> tasks_;
  Expectations expectations_;
  std::vector<Slot> slots_;
  size_t waiting_ = 0;  // slots whose gradient waits for a reduction
  std::vector<ReductionInFlight> in_flight_;
  uint64_t reduction_number_ = 0;  // of the last one that was started
  std::string error_;              // of the open backward, thrown when it ends
  std::atomic<int64_t> reductions_ = 0;
};

}  // namespace fsdp::runtime
