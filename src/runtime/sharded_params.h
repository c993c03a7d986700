#pragma once
/// \file
/// The parameters of a group: which they are, and where their rows, whole values and gradients lie.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "memory/part_storage.h"
#include "runtime/flat_params.h"
#include "runtime/group_identity.h"
#include "runtime/param_rows.h"
#include "runtime/param_slot.h"

namespace fsdp::runtime {

class ParamGroup;

/// Parameters, or slots, [begin, end) of a group.
struct SlotRun {
  size_t begin = 0, end = 0;
  bool operator==(const SlotRun&) const = default;
};

/// Note [Order of buckets]. Gradients arrive in about the reverse order of the parameters, so buckets are cut from the
/// end: what is reduced first is complete first. Each bucket is a plane of its own, one stretch of memory that is
/// summed where it lies. The order is part of the model, so it is the same on every rank without asking. A model that
/// registers its parameters in another order than it uses them, or whose several dtypes put the buckets of one dtype
/// after those of another, is reduced as correctly but later, because a complete bucket waits for those before it.
/// torch's DDP records the order in which gradients arrived, and its buckets are copies.

/// Runs of neighbours in ascending order, each as long as its gradients take at most `cap_bytes`, the last one at most
/// `last_cap_bytes`, so that it is complete early; but a run has one parameter at least. `bytes`: of the parameters'
/// whole gradients.
inline std::vector<SlotRun> cut_buckets(std::span<const int64_t> bytes, int64_t last_cap_bytes, int64_t cap_bytes) {
  std::vector<SlotRun> runs;
  int64_t sum = 0;
  for (size_t slot = bytes.size(); slot-- > 0;) {
    const int64_t cap = runs.size() == 1 ? std::min(last_cap_bytes, cap_bytes) : cap_bytes;
    if (runs.empty() || sum + bytes[slot] > cap) {
      runs.push_back({slot, slot + 1});
      sum = 0;
    }
    runs.back().begin = slot;
    sum += bytes[slot];
  }
  std::ranges::reverse(runs);
  return runs;
}

/// What parameters are to be that were, or would have been, of `form` (see ParamSlot::form); none: the same.
using FormChange = std::function<memory::Form(const memory::Form& form)>;

/// Thread safety: under the rank's lock; what does not change after `take_rows`, all of it.
class ShardedParams {
 public:
  /// The plane that a slot lies in, its index there, and in the list that the group was made of.
  struct Place {
    size_t flat = 0, item = 0, given = 0;
  };

  /// Decides where the parameters lie, and changes nothing. Memory comes with `FlatParams::allocate_shard`. Where every
  /// rank has all rows there is a plane for each bucket, whose gradients take at most `bucket_cap_bytes`.
  ShardedParams(const GroupIdentity& group, const std::vector<GroupMember>& parameters, RowMemory row_memory,
                int64_t bucket_cap_bytes, const FormChange& change = {});
  ~ShardedParams();
  ShardedParams(const ShardedParams&) = delete;
  ShardedParams& operator=(const ShardedParams&) = delete;
  /// Fills this rank's rows, each parameter's from its source; an empty one leaves zeros, and rows on the meta device
  /// have no values. The parameters stay as they are until `install`.
  void take_rows(const std::vector<RowSource>& sources);
  /// Makes the parameters show this rank's rows, and what lies on their storages a part of `owner`. Once.
  void install(const std::shared_ptr<ParamGroup>& owner);

  size_t count() const { return slots_.size(); }
  /// The slots in the order in which memory holds them.
  std::vector<ParamSlot>& slots() { return slots_; }
  Place place(size_t slot) const { return places_[slot]; }
  std::vector<FlatParams>& flats() { return flats_; }
  /// This rank's rows of all parameters, in the order of memory.
  std::vector<ParamRows> list_rows() const;
  /// The rows of a slot that a rank has.
  layout::RowRange rows_of(size_t slot, int rank) const {
    return flats_[places_[slot].flat].plane().rows_of(places_[slot].item, rank);
  }
  /// Where a slot begins in its plane, in elements.
  int64_t offset_in_plane(size_t slot) const {
    return flats_[places_[slot].flat].plane().items[places_[slot].item].offset;
  }
  /// The slots in a plane, which are neighbours.
  SlotRun slots_in(size_t flat) const { return runs_[flat]; }
  /// The planes whose whole values are on one device, which travel together; at least one list.
  const std::vector<std::vector<size_t>>& planes_by_device() const { return planes_by_device_; }
  /// A name seen from a module further out, for messages.
  void rename(size_t slot, std::string name);

  bool is_on_cpu() const;
  /// Whether some of the ranks' memory is shared.
  bool shares_memory() const;
  /// Whether this rank's rows are the whole parameters, in the same memory.
  bool rows_are_whole() const { return group_.placement.shard().world_size() == 1 && shares_memory(); }
  bool every_rank_has_rows() const;

  /// Puts the whole parameters into the whole buffers; takes their memory away.
  void attach_whole();
  void detach_whole();
  /// What a slot's rows have of `slice`, which has the form of their flat shard and lies as it does. A plain tensor on
  /// storage of its own, not a view: zero_grad() cannot detach views in place.
  at::Tensor rows_of_slice(size_t slot, const memory::FlatPart& slice);
  /// From now on `gradient` is known as that of the slot's rows.
  void register_gradient(size_t slot, const at::Tensor& gradient);

 private:
  void note_device_of(size_t flat);
  void add_planes(const FlatForms& forms, std::span<const size_t> members, const std::vector<GroupMember>& parameters,
                  RowMemory row_memory);
  size_t byte_offset_in_slice(size_t slot);
  void leave_to_others(const c10::Storage& former, const memory::MemoryRange& range, const ParamSlot& slot);

  const GroupIdentity& group_;
  std::weak_ptr<ParamGroup> owner_;
  std::vector<ParamSlot> slots_;
  std::vector<Place> places_;
  std::vector<FlatParams> flats_;
  std::vector<SlotRun> runs_;  // by plane
  std::vector<std::vector<size_t>> planes_by_device_{1};
};

}  // namespace fsdp::runtime
