#include "runtime/runs.h"

namespace fsdp::runtime {
namespace {

bool share_a_run(const Extent& a, const Extent& b) {
  if (!a.is_updated || !b.is_updated || a.recipe != b.recipe || a.spots.size() != b.spots.size()) return false;
  const int64_t distance = b.spots[0].first - a.spots[0].first;
  for (size_t i = 0; i < a.spots.size(); ++i) {
    const Spot &from = a.spots[i], &to = b.spots[i];
    if (from.block == 0 || from.block != to.block || to.first - from.first != distance) return false;
  }
  return true;
}

}  // namespace

std::vector<Run> plan_runs(std::span<const Extent> extents) {
  std::vector<Run> runs;
  for (size_t i = 0; i < extents.size(); ++i) {
    if (!extents[i].is_updated) continue;
    if (i == 0 || !share_a_run(extents[i - 1], extents[i])) runs.push_back({i, 0, 0});
    auto& run = runs.back();
    ++run.count;
    run.numel = extents[i].spots[0].first + extents[i].numel - extents[run.first].spots[0].first;
  }
  return runs;
}

}  // namespace fsdp::runtime
