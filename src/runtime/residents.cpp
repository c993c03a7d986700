#include "runtime/residents.h"

#include <algorithm>

namespace fsdp::runtime {

void Residents::note(GroupId group, Kinship::Span span) {
  const auto [place, is_new] = entries_.try_emplace(group, Entry{span});
  place->second.read = ++reads_;
  if (is_new) list(group, span);
}

void Residents::forget(GroupId group) {
  reconsider(group);
  const auto place = entries_.find(group);
  if (place == entries_.end()) return;
  unlist(group, place->second.span);
  entries_.erase(place);
}

void Residents::move(const Kinship& kinship) {
  by_first_.clear();
  by_last_.clear();
  for (auto& [group, entry] : entries_) {
    entry.span = kinship.span_of(group);
    if (!entry.is_kept) list(group, entry.span);
  }
}

void Residents::keep(GroupId group) {
  auto& entry = entries_.at(group);
  if (!std::exchange(entry.is_kept, true)) unlist(group, entry.span);
}

void Residents::reconsider(GroupId group) {
  const auto place = entries_.find(group);
  if (place != entries_.end() && std::exchange(place->second.is_kept, false)) list(group, place->second.span);
}

std::vector<GroupId> Residents::apart_from(Kinship::Span span) const {
  std::vector<GroupId> apart;
  for (const auto& [last, group] : by_last_) {
    if (last > span.first) break;
    apart.push_back(group);
  }
  for (auto behind = by_first_.lower_bound({span.last, 0}); behind != by_first_.end(); ++behind)
    apart.push_back(behind->second);
  std::ranges::sort(apart, {}, [&](GroupId group) { return entries_.at(group).read; });
  return apart;
}

std::vector<GroupId> Residents::within(Kinship::Span span) const {
  std::vector<GroupId> inside;
  const auto behind = by_first_.lower_bound({span.last, 0});
  for (auto it = by_first_.lower_bound({span.first, 0}); it != behind; ++it) inside.push_back(it->second);
  return inside;
}

void Residents::list(GroupId group, Kinship::Span span) {
  by_first_.emplace(span.first, group);
  by_last_.emplace(span.last, group);
}

void Residents::unlist(GroupId group, Kinship::Span span) {
  by_first_.erase({span.first, group});
  by_last_.erase({span.last, group});
}

}  // namespace fsdp::runtime
