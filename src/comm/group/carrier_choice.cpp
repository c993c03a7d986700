#include "comm/group/carrier_choice.h"

#include "comm/core/check.h"
#include "comm/core/host_grid.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace fsdp {
namespace {

// Why the ranks of a host that has several cannot share memory, in one sentence; empty if they can.
std::string obstacle_inside(const Ranks& ranks, const Roster& roster, std::span<const int> hosts) {
  const auto users = roster.users.unpack(), obstacles = roster.obstacles.unpack();
  std::vector<std::vector<size_t>> ranks_of(hosts.size());
  for (size_t rank = 0; rank < hosts.size(); ++rank) ranks_of[static_cast<size_t>(hosts[rank])].push_back(rank);
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    const auto& beside = ranks_of[static_cast<size_t>(hosts[rank])];
    if (beside.size() == 1) continue;
    const size_t first = beside.front();
    const int name = ranks.name_of(static_cast<int>(rank)), first_name = ranks.name_of(static_cast<int>(first));
    const auto& obstacle = roster.obstacle_texts[static_cast<size_t>(obstacles[rank])];
    if (!obstacle.empty()) return str_cat("rank ", name, ": ", obstacle);
    if (users[rank] != users[first])
      return str_cat("ranks of one user can share memory, found a process of user ", users[rank], " (rank ", name,
                     ") beside one of user ", users[first], " (rank ", first_name, ")");
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

bool may_share_memory(std::string_view backend) {
  return backend == "shm" || backend == "cpu" || backend == "hierarchical";
}

CarrierChoice choose_carrier(const std::string& backend, const Ranks& ranks, const Roster& roster,
                             const std::string& prefix) {
  if (!may_share_memory(backend)) return {};
  const auto hosts = roster.hosts.unpack();
  const auto wanted = carrier_for(hosts);
  std::string obstacle = backend == "shm" ? several_hosts(ranks, hosts) : "";
  if (obstacle.empty() && wanted != Carrier::kNetwork) obstacle = obstacle_inside(ranks, roster, hosts);
  if (obstacle.empty() && wanted == Carrier::kHierarchical) obstacle = HostGrid::why_not(hosts);
  if (obstacle.empty()) return {wanted, ""};
  require(backend == "cpu", prefix, "the backend \"", backend, "\" needs memory that ",
          backend == "shm" ? "all ranks share: " : "the ranks of each host share: ", obstacle,
          ". Use the backend \"gloo\" or \"cpu\".");
  return {Carrier::kNetwork, std::move(obstacle)};
}

}  // namespace fsdp
