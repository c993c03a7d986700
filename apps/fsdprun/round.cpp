#include "round.h"

#include <algorithm>

#include "comm/core/text.h"

namespace fsdprun {

std::optional<int> Round::node_of(int id) const {
  const auto found = std::ranges::find(members, id, &Member::id);
  if (found == members.end()) return std::nullopt;
  return static_cast<int>(found - members.begin());
}

int Round::first_rank(int node) const {
  int ranks = 0;
  for (int before = 0; before < node; ++before) ranks += members[static_cast<size_t>(before)].local_ranks;
  return ranks;
}

std::string Round::encode() const {
  fsdp::TextWriter text;
  text << attempt << ' ' << failures;
  for (const Member& member : members) text << ' ' << member.id << ' ' << member.local_ranks;
  return text.str();
}

Round Round::decode(const std::string& text) {
  fsdp::TextReader words(text);
  Round round;
  words >> round.attempt >> round.failures;
  for (Member member; words >> member.id >> member.local_ranks;) round.members.push_back(member);
  return round;
}

AttemptEnd AttemptEnd::decode(const std::string& text) {
  const size_t space = text.find(' ');
  return {.is_failure = text.substr(0, space) == "failure", .text = text.substr(space + 1)};
}

std::optional<std::vector<Member>> choose_members(const std::vector<Candidate>& candidates, NodeRange range,
                                                  bool last_call_is_over) {
  std::vector<Member> ready;
  for (const Candidate& candidate : candidates)
    if (candidate.is_ready) ready.push_back(candidate.member);
  std::ranges::sort(ready, {}, &Member::id);
  const bool wait_for_ends = ready.size() < candidates.size();
  if (ready.size() < static_cast<size_t>(range.least) || wait_for_ends) return std::nullopt;
  if (ready.size() < static_cast<size_t>(range.most) && !last_call_is_over) return std::nullopt;
  ready.resize(std::min(ready.size(), static_cast<size_t>(range.most)));
  return ready;
}

}  // namespace fsdprun
