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

#include "memory/stream_uses.h"
#include "runtime/group_identity.h"
#include "runtime/reduction.h"
#include "runtime/sharded_params.h"

namespace fsdp::runtime {

/// Where the gradient of a slot comes from: nowhere, the outermost graph task, or a backward inside it, which follows a
/// forward that runs again.
enum class GradientSource : uint8_t { kNone, kTask, kInside };

/// Of the slots of one group, while a backward is open.
class Expectations {
 public:
  /// A backward begins, which expects nothing yet.
  void begin(size_t slots) {
    missing_from_.assign(slots, GradientSource::kNone);
    expected_ = missing_ = missing_inside_ = 0;
  }
  void expect(size_t slot, GradientSource source) {
    missing_from_[slot] = source;
    expected_ += source == GradientSource::kTask ? 1 : 0;
    missing_ += source == GradientSource::kTask ? 1 : 0;
    missing_inside_ += source == GradientSource::kInside ? 1 : 0;
  }
  void arrive(size_t slot, GradientSource source) {
    if (missing_from_[slot] != source) return;
    missing_from_[slot] = GradientSource::kNone;
    --(source == GradientSource::kInside ? missing_inside_ : missing_);
  }

  /// Whether the outermost graph task gives any.
  bool expects_any() const { return expected_ > 0; }
  bool is_complete() const { return missing_ == 0 && missing_inside_ == 0; }
  /// Whether nothing else is missing but gradients of what may be computed again.
  bool awaits_recomputation_only() const { return missing_ == 0 && missing_inside_ > 0; }

 private:
  std::vector<GradientSource> missing_from_;
  size_t expected_ = 0, missing_ = 0, missing_inside_ = 0;
};

/// Of a bucket in the open backward; what arrives after its reduction has begun is reduced once more.
enum class BucketState : uint8_t { kCollecting, kReducing, kReduced };

/// While a backward is open, `.grad` holds whole gradients and the rows' gradients are parked here. A parameter that
/// some rank used gets a gradient on every rank, one that no rank used keeps `.grad` as it was. The gradients handed
/// out are parts of one buffer for each plane. A backward that is not the last may close while reductions are in
/// flight: their results are added by the one in which somebody waits for them.
///
/// What one collective reduces is a bucket: all planes of a device where ranks have rows each; a single plane where
/// every rank has all rows (Note [Order of buckets]). Thread safety: under the rank's lock.
class GroupBackward {
 public:
  GroupBackward(const GroupIdentity& group, ShardedParams& params);

  // Graph tasks that entered the group, the outermost first.
  const std::vector<int>& tasks() const { return tasks_; }
  bool is_open() const { return is_open_; }
  bool has(int task) const { return std::ranges::find(tasks_, task) != tasks_.end(); }
  /// Whether no other backward goes through the group.
  bool has_only(int task) const { return tasks_.size() == 1 && tasks_.front() == task; }
  /// The first of them will give gradients to the slots that it `expects`, and opens the backward. Where it
  /// `may_recompute`, others that were read unrecorded get theirs from backwards inside it.
  void enter(int task, bool (*expects)(const ParamSlot&), bool may_recompute);
  /// After the last of them `.grad` holds the rows' gradients, and the backward is closed. Returns what is to be thrown
  /// then.
  [[nodiscard]] std::string leave(int task);

  /// In the order in which they are reduced; at least one.
  size_t buckets() const { return buckets_.size(); }
  size_t bucket_of(size_t slot) const { return slots_[slot].bucket; }
  /// What is missing in the open backward.
  const Expectations& expectations(size_t bucket) const { return buckets_[bucket].expectations; }
  /// Whether the outermost graph task gives any gradient.
  bool expects_any() const;
  /// Adds a whole gradient, dense or sparse.
  void add(size_t slot, at::Tensor gradient, bool from_inside);
  /// Whether gradients, or the sum of some within the replica, wait for a reduction, also since an earlier backward;
  /// that of one slot.
  bool has_gradients() const {
    const auto keeps_sum = [](const Bucket& bucket) { return bucket.partial_sum.is_there(); };
    return waiting_ > 0 || std::ranges::any_of(buckets_, keeps_sum);
  }
  bool has_gradient(size_t slot) const {
    return slots_[slot].waits || buckets_[slots_[slot].bucket].partial_sum.rows.contains(params_.place(slot).flat);
  }
  /// Whether whole gradients wait for a reduction in one bucket.
  bool has_gradients_in(size_t bucket) const;
  /// Whether reductions of backwards that have ended were not waited for.
  bool has_late_reductions() const {
    const auto is_in_flight = [](const Bucket& bucket) { return bucket.in_flight.has_value(); };
    return !is_open_ && std::ranges::any_of(buckets_, is_in_flight);
  }
  /// Of the whole gradients that arrived in the open backward on the CPU.
  int64_t arrived_bytes();

  /// Whether the open backward has started the bucket's reduction.
  bool is_reduced(size_t bucket) const { return buckets_[bucket].state != BucketState::kCollecting; }
  /// Of what has arrived; kCollecting, kReduced -> kReducing. Waits for one in flight. `count`: what the ranks
  /// compare. Collective.
  void start_reduction(size_t bucket, const ReductionPolicy& policy, Tag::Count count);
  /// Waits for all that are in flight, those of earlier backwards too, and adds the results to the rows' gradients;
  /// kReducing -> kReduced.
  void finish_reductions(const ReductionPolicy& policy);
  /// What was reduced is added to the rows' gradients, once the host has waited for it. Throws if a device failed
  /// meanwhile.
  void finish_landing();
  /// Whether gradients were reduced since the user had them, none is on its way, and no other backward goes through the
  /// group.
  bool has_complete_gradients() const {
    return has_news_ && is_open_ && tasks_.size() == 1 && waiting_ == 0 &&
           std::ranges::all_of(buckets_, [](const Bucket& bucket) { return bucket.state == BucketState::kReduced; });
  }
  /// Puts the rows' gradients, which are parked, into `.grad`, or back.
  void exchange_gradients();
  /// The user had the open backward's gradients.
  void note_handed_out() {
    is_handed_out_ = true;
    has_news_ = false;
  }
  bool is_handed_out() const { return is_handed_out_; }
  /// Reductions so far, one a bucket. May be read without the lock.
  int64_t reductions() const { return reductions_; }

  /// A scope opens: nothing of the group was read in it.
  void forget_reads();
  /// Forgets an iteration, and closes the backward. Returns how many graph tasks had entered the group.
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
    bool waits = false;             // without a gradient, too, if this rank had no data for it: ranks reduce alike
    size_t bucket = 0, number = 0;  // its bucket, and its number among the bucket's slots
    bool has_arrived = false;       // in the open backward
    bool was_read_unrecorded = false;
  };
  struct Bucket {
    std::vector<size_t> planes = {}, slots = {};
    BucketState state = BucketState::kCollecting;
    Expectations expectations = {};
    std::optional<ReductionInFlight> in_flight = {};  // of an earlier backward while this one is collecting
    uint64_t reduction_number = 0;                    // of the last one that was started
    PartialSum partial_sum = {};
  };

  // What was reduced, on its way to the rows' gradients.
  struct Landing {
    size_t flat = 0;
    std::vector<uint8_t> votes;
    memory::FlatPart slice;  // in the form of the rows
  };

  void open(bool (*expects)(const ParamSlot&), bool may_recompute);
  void close();
  bool trains(const Bucket& bucket, size_t plane);
  memory::Charge charge_of(const at::Tensor& gradient) const;
  void take_gradients(const ReducedPlane& plane, PartialSum& kept, Contribution& taken);
  Contribution take_contribution(Bucket& bucket, const std::vector<ReducedPlane>& planes);
  memory::FlatPart land(const ReducedPlane& reduced);
  std::optional<c10::Stream> stream_of_results();
  void finish_reduction(Bucket& bucket, const ReductionPolicy& policy);
  static std::optional<ReductionInFlight> take_in_flight(Bucket& bucket);
  void hand_out(Bucket& bucket, ReductionInFlight reduced, const ReductionPolicy& policy);
  void add_to_rows(size_t slot, at::Tensor gradient);

  const GroupIdentity& group_;
  ShardedParams& params_;
  bool is_open_ = false;
  // In the open backward: reduced since the user had gradients; the user had some.
  bool has_news_ = false, is_handed_out_ = false;
  std::vector<int> tasks_;
  std::vector<Slot> slots_;
  std::vector<Bucket> buckets_;
  size_t waiting_ = 0;  // slots whose gradient waits for a reduction
  std::vector<Landing> landings_;
  std::string error_;  // of the open backward, thrown when it ends
  std::atomic<int64_t> reductions_ = 0;
};

}  // namespace fsdp::runtime
