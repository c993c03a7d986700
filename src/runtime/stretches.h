#pragma once
/// \file
/// Memory of parameters that are neighbours, as few flat tensors.

#include <c10/util/irange.h>

#include <map>
#include <span>
#include <vector>

#include "runtime/param_group.h"
#include "runtime/registry.h"
#include "runtime/runs.h"

namespace fsdp::runtime {

/// Of a tensor that is a part of a flat buffer; of another one a spot that no other tensor shares.
Spot spot_of(const at::Tensor& tensor);

/// `numel` elements of memory from the begin of `tensor` on.
at::Tensor stretch(const at::Tensor& tensor, int64_t numel);

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

/// Calls `visit(items of the run, elements from the begin of the first to the end of the last)` for each maximal run,
/// see plan_runs; `extent_of(item)` says what of it. Under the ranks' locks.
template <class Item, class ExtentOf, class Visit>
void visit_runs(std::vector<Item>& items, const ExtentOf& extent_of, const Visit& visit) {
  for (const auto& line : lines_of(items)) {
    std::vector<Extent> extents;
    for (const auto* item : line) extents.push_back(item == nullptr ? Extent{} : extent_of(*item));
    for (const auto& run : plan_runs(extents)) visit(std::span(line).subspan(run.first, run.count), run.numel);
  }
}

}  // namespace fsdp::runtime
