#pragma once
/// \file
/// Parameters whose memory lies side by side, so that one call of a kernel can go through it.

#include <c10/util/irange.h>

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "runtime/param_group.h"
#include "runtime/registry.h"

namespace fsdp::runtime {

/// What is done to rows, as numbers; equal keys may share a call.
using KernelKey = std::array<int64_t, 3>;

struct Location {
  uint64_t block = 0;  ///< the block of memory that it is a part of; 0: memory of its own
  int64_t first = 0;   ///< its first element, counted from the block's
};

/// The rows of one parameter, with all that is read or written beside them.
struct Extent {
  bool is_updated = false;  ///< otherwise the rows stay as they are
  KernelKey kernel_key{};
  int64_t numel = 0;
  std::vector<Location> locations;  ///< of the rows, then of the gradient and the state
};

/// `count` extents from `first` on, with `numel` elements from the begin of the first to the end of the last.
struct Run {
  size_t first = 0;
  size_t count = 0;
  int64_t numel = 0;
  bool operator==(const Run&) const = default;
};

/// The maximal runs of `extents`, which are listed in the order of memory, none left out.
///
/// Two neighbours share a run if both are updated by the same kernel key, and each tensor of the one is as far from the
/// same tensor of the other as their rows are, in one block. What lies between them is then padding everywhere.
std::vector<Run> plan_runs(std::span<const Extent> extents);

/// Of a tensor that is a part of a flat buffer; of another one a spot that no other tensor shares.
Location location_of(const at::Tensor& tensor);

at::Tensor flat_range(const at::Tensor& tensor, int64_t numel);

/// What each group has of `items` on this rank, in the order of memory; null where rows have no item. An item that is
/// part of none is alone. Of each, `part` says whose rows `rows` are; those without elements are left out.
template <class Item>
std::vector<std::vector<Item*>> lines_of(std::vector<Item>& items) {
  std::vector<std::vector<Item*>> lines;
  std::map<ParamGroup*, std::vector<Item*>> by_group;
  for (auto& item : items) {
    if (item.rows.numel() == 0) continue;
    if (!item.part) {
      lines.push_back({&item});
      continue;
    }
    auto& of_slots = by_group[item.part->group.get()];
    of_slots.resize(item.part->group->slots().size());
    of_slots[item.part->slot] = &item;
  }
  for (const auto& [group, of_slots] : by_group) {
    auto& line = lines.emplace_back();
    for (size_t slot : c10::irange(of_slots.size()))
      if (group->slots()[slot].rows_numel() > 0) line.push_back(of_slots[slot]);
  }
  return lines;
}

/// Calls `visit(items, elements)` for each run, see plan_runs, of what `extent_of(item)` gives. Under the ranks' locks.
template <class Item, class ExtentOf, class Visit>
void visit_runs(std::vector<Item>& items, const ExtentOf& extent_of, const Visit& visit) {
  for (const auto& line : lines_of(items)) {
    std::vector<Extent> extents;
    for (const auto* item : line) extents.push_back(item == nullptr ? Extent{} : extent_of(*item));
    for (const auto& run : plan_runs(extents)) visit(std::span(line).subspan(run.first, run.count), run.numel);
  }
}

}  // namespace fsdp::runtime
