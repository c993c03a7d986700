#pragma once
/// \file
/// The parameters of a group, and the flat buffers in which their rows, whole values and gradients lie.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/flat_params.h"
#include "runtime/group_policy.h"
#include "runtime/param_slot.h"

namespace fsdp::runtime {

class ParamGroup;

/// The neighbouring slots [begin, end).
struct SlotRun {
  size_t begin = 0, end = 0;
  bool operator==(const SlotRun&) const = default;
};

/// Note [Order of buckets]. A bucket is a list of planes that are gathered and reduced together. If the ranks have
/// different rows, it contains all planes of one device. If every rank has all rows, it is a single plane, which is
/// contiguous memory and is summed in place. Gradients arrive in about the reverse order of the parameters, so the last
/// parameters form the bucket that is reduced first. A complete bucket waits for the buckets before it in this order,
/// so a model that uses its parameters in another order than it registers them is reduced later. PyTorch's DDP records
/// the order in which gradients arrive instead, but it copies gradients into its buckets.

/// Cuts parameters into runs of neighbours, which are returned in ascending order. The gradients of a run take at most
/// `cap_bytes`, except that a run has at least one parameter. The gradients of the last run take at most
/// `last_cap_bytes`, so that it is complete early. `bytes` has the size of each parameter's whole gradient.
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

/// The parameters of a group as they are laid out over one placement. Thread safety: the caller holds the rank's lock.
class ShardedParams {
 public:
  /// Lays the parameters out without changing them. Memory is allocated later, by `FlatParams::allocate_shard`.
  ShardedParams(const GroupSpec& group, const std::shared_ptr<memory::ByteAccount>& account);
  ~ShardedParams();
  ShardedParams(const ShardedParams&) = delete;
  ShardedParams& operator=(const ShardedParams&) = delete;
  /// Copies this rank's rows from whole tensors, which are in the order of GroupSpec::parameters. Rows of an undefined
  /// tensor stay zero. The parameters themselves do not change until `install`.
  void take_rows(const std::vector<at::Tensor>& wholes);
  /// Makes the parameters show this rank's rows, and registers their storages as parts of `owner`. Called once.
  void install(const std::shared_ptr<ParamGroup>& owner);

  const std::string group_name;  // the group's name when this object was made
  Placement placement;
  const std::string disk_folder;  // GroupPolicy::disk_folder
  /// The buffers that the ranks share, one for each device. `flats()` keeps them alive.
  std::vector<SharedBuffer*> shared_buffers;

  /// The slots, plane by plane, in memory order.
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

  /// Returns the message of the error that raw access to a whole parameter without memory throws.
  std::string no_memory_message(const ParamSlot& slot) const;

  bool is_on_cpu() const {
    return std::ranges::all_of(flats_, [](const FlatParams& flat) { return flat.whole().form.device.is_cpu(); });
  }
  /// Returns true if all whole values lie in memory that all ranks share.
  bool shares_memory() const { return std::ranges::all_of(flats_, &FlatParams::shares_memory); }
  /// Returns true if this rank's rows are the whole parameters, in the same memory.
  bool rows_are_whole() const { return placement.shard().world_size() == 1 && shares_memory(); }
  bool every_rank_has_rows() const;

  /// Gives the whole parameters their memory in the whole buffers.
  void attach_whole() {
    for (auto& slot : slots_) {
      const auto& whole = flats_[slot.place.plane].whole();
      slot.whole_storage.attach(whole.buffer, whole.form.bytes(slot.offset()));
    }
  }
  /// Takes the memory of the whole parameters away.
  void detach_whole() {
    for (auto& slot : slots_) slot.whole_storage.detach(slot.no_memory_error);
  }
  /// Returns the slot's rows in `slice`, which is laid out like the flat shard. The result is not a view, because
  /// zero_grad() cannot detach a view in place.
  at::Tensor rows_of_slice(const ParamSlot& slot, const memory::FlatPart& slice);
  /// Registers the storage of `gradient` as the gradient of the slot's rows.
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
