#include "runtime/schedule.h"

#include <algorithm>

namespace fsdp::runtime {

void ReadOrder::start() {
  // A pass that read nothing (an exception, an empty scope) predicts nothing and forgets nothing.
  if (!seen_.empty()) predicted_ = std::move(seen_);
  seen_.clear();
  cursor_ = 0;
}

std::optional<GroupId> ReadOrder::note(GroupId group) {
  if (seen_.empty() || seen_.back() != group) seen_.push_back(group);
  auto it = std::find(predicted_.begin() + static_cast<std::ptrdiff_t>(cursor_), predicted_.end(), group);
  if (it == predicted_.end()) return std::nullopt;
  cursor_ = static_cast<size_t>(it - predicted_.begin());
  if (cursor_ + 1 == predicted_.size()) return std::nullopt;
  return predicted_[cursor_ + 1];
}

std::vector<GroupId> groups_to_free(std::span<const Resident> residents, size_t left) {
  std::vector<GroupId> free;
  for (const auto& resident : residents)
    if (!resident.is_protected) free.push_back(resident.group);
  free.resize(free.size() - std::min(free.size(), left));
  return free;
}

}  // namespace fsdp::runtime
