#include "runtime/schedule.h"

#include <unordered_set>

namespace fsdp::runtime {
namespace {

constexpr GroupId kBeginning = 0;  // marks the beginning of a pass
// At most this many reads are remembered: kReadsOfAGroup for each group, plus kMoreReads. A pass or a round of a loop
// that reads more is not recognised.
constexpr size_t kReadsOfAGroup = 8, kMoreReads = 64;

}  // namespace

void ReadOrder::start() {
  // If the last pass read nothing (because of an exception or an empty scope), the pass before it stays the last one.
  if (!reads_.empty() && reads_.back() == kBeginning) return;
  place_ = pass_;
  pass_ = end();
  append(kBeginning);
}

std::optional<GroupId> ReadOrder::note(GroupId group) {
  if (reads_.empty() || reads_.back() != group) {
    const bool goes_on = place_ != 0 && is_known(place_ + 1) && at(place_ + 1) == group;
    place_ = goes_on ? place_ + 1 : find_place(group);
    last_[group] = end();
    append(group);
  }
  if (place_ == 0 || !is_known(place_ + 1) || at(place_ + 1) == kBeginning) return std::nullopt;
  return at(place_ + 1);
}

std::vector<GroupId> ReadOrder::ahead(size_t most, const std::function<bool(GroupId)>& fits) const {
  std::vector<GroupId> groups;
  if (place_ == 0) return groups;
  std::unordered_set<GroupId> known{reads_.back()};
  const auto goes_on = [&](Place place) { return is_known(place) && place + 1 < end() && at(place) != kBeginning; };
  for (Place place = place_ + 1; groups.size() < most && goes_on(place); ++place) {
    if (!known.insert(at(place)).second) continue;
    if (!fits(at(place))) break;
    groups.push_back(at(place));
  }
  return groups;
}

// Returns where the group was read last, or 0. A read in the current pass counts only if it followed the same group as
// the present read: a group that is read twice in one pass may be followed by a different group each time.
ReadOrder::Place ReadOrder::find_place(GroupId group) const {
  auto it = last_.find(group);
  if (it == last_.end() || !is_known(it->second)) return 0;
  const Place place = it->second;
  if (place < pass_) return place;
  return is_known(place - 1) && at(place - 1) == reads_.back() ? place : 0;
}

void ReadOrder::append(GroupId group) {
  reads_.push_back(group);
  for (; reads_.size() > kReadsOfAGroup * last_.size() + kMoreReads; ++first_) reads_.pop_front();
}

}  // namespace fsdp::runtime
