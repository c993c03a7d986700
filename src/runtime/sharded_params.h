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

#include "runtime/flat_params.h"
#include "runtime/group_policy.h"
#include "runtime/param_slot.h"

namespace fsdp::runtime {

class ParamGroup;

struct SlotRun {
  size_t begin = 0, end = 0;
  bool operator==(const SlotRun&) const = default;
};

/// Note [Order of buckets]. What travels together is a bucket: all planes of a device where ranks have rows each; where
/// every rank has all rows, a single plane, which is one stretch of memory and is summed where it lies. Gradients
/// arrive in about the reverse order of the parameters, so buckets are cut from the end, and the last one is reduced
/// first. A complete bucket waits for those before it: a model that registers its parameters in another order than it
/// uses them is reduced later. torch's DDP records the order in which gradients arrived, and its buckets are copies.

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

/// What follows from the placement of a group. Thread safety: under the rank's lock.
class ShardedParams {
 public:
  /// Decides where the parameters lie, and changes nothing. Memory comes with `FlatParams::allocate_shard`.
  ShardedParams(const GroupSpec& group, std::shared_ptr<memory::ByteAccount> account, const FormChange& change = {});
  ~ShardedParams();
  ShardedParams(const ShardedParams&) = delete;
  ShardedParams& operator=(const ShardedParams&) = delete;
  /// Copies this rank's rows of whole tensors, which are in the order in which the parameters were given. Rows of an
  /// undefined tensor stay zero. Parameters stay as they are until `install`.
  void take_rows(const std::vector<at::Tensor>& wholes);
  /// Makes the parameters show this rank's rows, and what lies on their storages a part of `owner`. Once.
  void install(const std::shared_ptr<ParamGroup>& owner);

  const std::string group_name;  // as it was then
  Placement placement;
  const std::string disk_folder;  // as GroupPolicy has it
  /// The memory that ranks share, one buffer for each device; it outlives this object.
  std::vector<SharedBuffer*> shared_buffers;

  /// The slots in the order in which memory holds them.
  std::vector<ParamSlot>& slots() { return slots_; }
  std::vector<FlatParams>& flats() { return flats_; }
  /// The planes of each bucket, in the order in which they are reduced; at least one. See Note [Order of buckets].
  const std::vector<std::vector<size_t>>& buckets() const { return buckets_; }
  layout::RowRange rows_of(size_t slot, int rank) const {
    const auto& place = slots_[slot].place;
    return flats_[place.plane].plane().rows_of(place.item, rank);
  }
  std::span<ParamSlot> slots_in(size_t plane) {
    return std::span(slots_).subspan(runs_[plane].begin, runs_[plane].end - runs_[plane].begin);
  }

  /// What raw access to a whole parameter without memory says.
  std::string no_memory_message(const ParamSlot& slot) const;

  bool is_on_cpu() const;
  /// Whether all whole values lie in memory that ranks share.
  bool shares_memory() const { return std::ranges::all_of(flats_, &FlatParams::shares_memory); }
  /// Whether this rank's rows are the whole parameters, in the same memory.
  bool rows_are_whole() const { return placement.shard().world_size() == 1 && shares_memory(); }
  bool every_rank_has_rows() const;

  /// Puts the whole parameters into the whole buffers; takes their memory away.
  void attach_whole();
  void detach_whole();
  /// A slot's part of `slice`, which lies as the flat shard does. Not a view, which zero_grad() cannot detach in place.
  at::Tensor rows_of_slice(const ParamSlot& slot, const memory::FlatPart& slice);
  /// From now on `gradient` is known as that of the slot's rows.
  void register_gradient(ParamSlot& slot, const at::Tensor& gradient);

 private:
  void add_planes(const FlatForms& forms, std::span<const size_t> members, const GroupSpec& group,
                  const std::shared_ptr<memory::ByteAccount>& account);
  void cut_into_buckets();
  size_t byte_offset_in_slice(const ParamSlot& slot);

  std::weak_ptr<ParamGroup> owner_;
  std::vector<ParamSlot> slots_;
  std::vector<FlatParams> flats_;
  std::vector<SlotRun> runs_;  // by plane
  std::vector<std::vector<size_t>> buckets_;
};

}  // namespace fsdp::runtime
