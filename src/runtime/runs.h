#pragma once
/// \file
/// Runs of parameters that lie side by side in memory, so that one kernel call can process them.

#include <c10/util/irange.h>

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "runtime/param_group.h"
#include "runtime/registry.h"

namespace fsdp::runtime {

/// Numbers that describe what a kernel does to rows. Parameters with equal keys may share a call.
using KernelKey = std::array<int64_t, 3>;

/// The place of a tensor in memory.
struct Location {
  uint64_t block = 0;  ///< number of the flat buffer in which the tensor lies; 0 if it lies in none
  int64_t first = 0;   ///< index of the tensor's first element in the flat buffer
};

/// The rows of one parameter, and the tensors that a kernel reads or writes together with them.
struct Extent {
  bool is_updated = false;  ///< false if the kernel leaves the rows as they are
  KernelKey kernel_key{};
  int64_t numel = 0;
  std::vector<Location> locations;  ///< locations of the rows, the gradient and the optimizer state
};

/// `count` neighbouring extents. There are `numel` elements from the beginning of extent `first` to the end of the last
/// one.
struct Run {
  size_t first = 0;
  size_t count = 0;
  int64_t numel = 0;
  bool operator==(const Run&) const = default;
};

/// Returns the longest possible runs of `extents`, which must contain all rows of a group in memory order.
///
/// Two neighbours share a run if both are updated with the same kernel key, each pair of corresponding tensors lies in
/// one flat buffer, and the distance between the two tensors is the same for every pair. Between the neighbours there
/// is then only padding.
std::vector<Run> plan_runs(std::span<const Extent> extents);

/// Returns where the tensor lies; block 0 if it lies in no flat buffer.
Location location_of(const at::Tensor& tensor);

/// Returns a tensor of one dim with the `numel` elements from the first element of `tensor` on.
at::Tensor flat_range(const at::Tensor& tensor, int64_t numel);

/// Calls `visit(items of the run, numel)` for each run (see plan_runs) of the extents that `extent_of(item)` returns.
/// `part` of an item says to which slot its `rows` belong; an item without a part is a run of its own. The caller holds
/// the ranks' locks.
template <class Item, class ExtentOf, class Visit>
void visit_runs(std::vector<Item>& items, const ExtentOf& extent_of, const Visit& visit) {
  // `line` has items in memory order, and null for rows between them that have no item.
  const auto visit_line = [&](const std::vector<Item*>& line) {
    std::vector<Extent> extents;
    for (const auto* item : line) extents.push_back(item == nullptr ? Extent{} : extent_of(*item));
    for (const auto& run : plan_runs(extents)) visit(std::span(line).subspan(run.first, run.count), run.numel);
  };
  std::map<ParamGroup*, std::vector<Item*>> by_group;
  for (auto& item : items) {
    if (item.rows.numel() == 0) continue;
    if (!item.part) {
      visit_line({&item});
      continue;
    }
    auto& of_slots = by_group[item.part->group.get()];
    of_slots.resize(item.part->group->slots().size());
    of_slots[item.part->slot] = &item;
  }
  for (const auto& [group, of_slots] : by_group) {
    std::vector<Item*> line;
    for (size_t slot : c10::irange(of_slots.size()))
      if (group->slots()[slot].rows_numel() > 0) line.push_back(of_slots[slot]);
    visit_line(line);
  }
}

}  // namespace fsdp::runtime
