#include "comm/group/roster.h"

#include <algorithm>
#include <set>
#include <utility>

#include "comm/core/check.h"
#include "comm/core/host_grid.h"

namespace fsdp {
namespace {

// Returns a number for each key. Equal keys have equal numbers, which count from 0 in the order in which keys first
// appear.
template <class Key>
std::vector<int> number(const std::vector<Key>& keys) {
  std::vector<int> numbers;
  std::map<Key, int> known;
  for (const auto& key : keys) numbers.push_back(known.try_emplace(key, static_cast<int>(known.size())).first->second);
  return numbers;
}

// Returns Roster::obstacle.
std::string obstacle_in(std::span<const Profile> profiles, std::span<const int> hosts) {
  std::map<int, std::vector<size_t>> ranks_of;
  for (size_t rank = 0; rank < profiles.size(); ++rank) ranks_of[hosts[rank]].push_back(rank);
  for (size_t rank = 0; rank < profiles.size(); ++rank) {
    const auto& ranks = ranks_of[hosts[rank]];
    if (ranks.size() == 1) continue;
    const size_t first = ranks.front();
    if (profiles[rank].user != profiles[first].user)
      return str_cat("only ranks of the same user can share memory, but user ", profiles[rank].user, " runs rank ",
                     rank, " and user ", profiles[first].user, " runs rank ", first);
    if (!profiles[rank].obstacle.empty()) return str_cat("rank ", rank, ": ", profiles[rank].obstacle);
  }
  return "";
}

}  // namespace

std::vector<Runs> pack_numbers(std::span<const int> numbers) {
  std::vector<Runs> all;
  for (size_t begin = 0, end = 0; begin < numbers.size(); begin = end) {
    while (end < numbers.size() && numbers[end] == numbers[begin]) ++end;
    const int step = numbers[begin] - (begin == 0 ? 0 : numbers[begin - 1]), length = static_cast<int>(end - begin);
    const bool goes_on = !all.empty() && all.back().step == step && all.back().length == length;
    if (!goes_on) all.push_back({length, step, 0});
    ++all.back().times;
  }
  return all;
}

std::vector<int> unpack_numbers(std::span<const Runs> all) {
  std::vector<int> numbers;
  int number = 0;
  for (const auto& [length, step, times] : all)
    for (int run = 0; run < times; ++run) numbers.insert(numbers.end(), static_cast<size_t>(length), number += step);
  return numbers;
}

Roster roster_of(std::span<const Profile> profiles) {
  Roster roster;
  std::vector<std::pair<std::string, std::string>> places;
  std::set<std::string> known;
  for (const auto& profile : profiles) {
    if (known.insert(profile.claims).second) roster.claims[static_cast<int>(places.size())] = profile.claims;
    if (profile.domain != profiles.front().domain) roster.is_one_domain = false;
    places.emplace_back(profile.domain, profile.host);
  }
  const auto hosts = number(places);
  roster.hosts = pack_numbers(hosts);
  roster.obstacle = obstacle_in(profiles, hosts);
  return roster;
}

Roster roster_of(const Roster& roster, std::span<const int> ranks) {
  const auto all = unpack_numbers(roster.hosts);
  std::vector<int> hosts;
  for (const int rank : ranks) hosts.push_back(all[static_cast<size_t>(rank)]);
  return {{}, pack_numbers(number(hosts)), roster.is_one_domain, roster.obstacle};
}

bool may_share_memory(std::string_view backend) {
  return backend == "shm" || backend == "cpu" || backend == "hierarchical";
}

CarrierChoice choose_carrier(const std::string& backend, const Ranks& ranks, const Roster& roster,
                             const std::string& prefix) {
  if (!may_share_memory(backend)) return {};
  const auto hosts = unpack_numbers(roster.hosts);
  const int count = 1 + std::ranges::max(hosts);
  const auto wanted = count == 1                   ? Carrier::kSharedMemory
                      : count == std::ssize(hosts) ? Carrier::kNetwork
                                                   : Carrier::kHierarchical;
  std::string obstacle;
  // Hosts are numbered in the order of their first ranks.
  if (const auto other = std::ranges::find(hosts, 1); backend == "shm" && other != hosts.end())
    obstacle = str_cat("rank ", ranks.name_of(0), " and rank ", ranks.name_of(static_cast<int>(other - hosts.begin())),
                       " are on different hosts or in different network or process namespaces");
  if (obstacle.empty() && wanted != Carrier::kNetwork) obstacle = roster.obstacle;
  require(obstacle.empty() || backend == "cpu", prefix, "the backend \"", backend, "\" needs memory that ",
          backend == "shm" ? "all ranks share: " : "the ranks of each host share: ", obstacle,
          ". Use the backend \"gloo\" or \"cpu\".");
  if (obstacle.empty() && wanted == Carrier::kHierarchical) obstacle = why_no_grid(hosts);
  return {obstacle.empty() ? wanted : Carrier::kNetwork, std::move(obstacle)};
}

}  // namespace fsdp
