#include "comm/group/profile.h"

#include "comm/core/check.h"
#include "comm/core/host_grid.h"

#include <algorithm>
#include <map>
#include <utility>

namespace fsdp {
namespace {

// The first rank of the same host.
size_t first_beside(std::span<const int> hosts, size_t rank) {
  return static_cast<size_t>(std::ranges::find(hosts, hosts[rank]) - hosts.begin());
}

// Why the ranks of a host that has several cannot share memory, in one sentence; empty if they can.
std::string obstacle_inside(const Ranks& ranks, std::span<const Profile> profiles, std::span<const int> hosts) {
  for (size_t rank = 0; rank < profiles.size(); ++rank) {
    if (std::ranges::count(hosts, hosts[rank]) == 1) continue;
    const size_t first = first_beside(hosts, rank);
    const int name = ranks.name_of(static_cast<int>(rank)), first_name = ranks.name_of(static_cast<int>(first));
    if (!profiles[rank].obstacle.empty()) return str_cat("rank ", name, ": ", profiles[rank].obstacle);
    if (profiles[rank].user != profiles[first].user)
      return str_cat("ranks of one user can share memory, found a process of user ", profiles[rank].user, " (rank ",
                     name, ") beside one of user ", profiles[first].user, " (rank ", first_name, ")");
  }
  return "";
}

// Why not all ranks are on one host; empty if they are.
std::string several_hosts(const Ranks& ranks, std::span<const int> hosts) {
  const auto other = std::ranges::find_if(hosts, [&](int host) { return host != hosts[0]; });
  if (other == hosts.end()) return "";
  return str_cat("rank ", ranks.name_of(0), " and rank ", ranks.name_of(static_cast<int>(other - hosts.begin())),
                 " are on different hosts or in different network namespaces");
}

// What these hosts call for, whatever may be in the way.
Carrier carrier_for(std::span<const int> hosts) {
  const int most = *std::ranges::max_element(hosts);
  if (most == 0) return Carrier::kSharedMemory;
  return most + 1 == static_cast<int>(hosts.size()) ? Carrier::kNetwork : Carrier::kHierarchical;
}

}  // namespace

std::vector<int> hosts_of(std::span<const Profile> profiles) {
  std::vector<int> numbers;
  std::map<std::pair<std::string, std::string>, int> known;
  for (const auto& profile : profiles) {
    const auto number = static_cast<int>(known.size());
    numbers.push_back(known.try_emplace({profile.domain, profile.host}, number).first->second);
  }
  return numbers;
}

bool may_share_memory(std::string_view backend) {
  return backend == "shm" || backend == "cpu" || backend == "hierarchical";
}

CarrierChoice choose_carrier(const std::string& backend, const Ranks& ranks, std::span<const Profile> profiles,
                             std::span<const int> hosts, const std::string& prefix) {
  if (!may_share_memory(backend)) return {};
  const auto wanted = carrier_for(hosts);
  std::string obstacle = backend == "shm" ? several_hosts(ranks, hosts) : "";
  if (obstacle.empty() && wanted != Carrier::kNetwork) obstacle = obstacle_inside(ranks, profiles, hosts);
  if (obstacle.empty() && wanted == Carrier::kHierarchical) obstacle = HostGrid::why_not(hosts);
  if (obstacle.empty()) return {wanted, ""};
  require(backend == "cpu", prefix, "the backend \"", backend, "\" needs memory that ",
          backend == "shm" ? "all ranks share: " : "the ranks of each host share: ", obstacle,
          ". Use the backend \"gloo\" or \"cpu\".");
  return {Carrier::kNetwork, std::move(obstacle)};
}

}  // namespace fsdp
