#pragma once
/// \file
/// Pure functions that tell which ranks are on which host.

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "comm/core/text.h"

namespace fsdp {

/// A grid of hosts with the same number of consecutive ranks each. A rank's counterpart on another host is the rank
/// with the same position on that host. Ranks exchange data with other hosts mostly through their counterparts.
struct HostGrid {
  int ranks_per_host = 1, hosts = 1, rank = 0;

  int own_host() const { return rank / ranks_per_host; }
  int first_on(int host) const { return host * ranks_per_host; }
  int counterpart_on(int host) const { return first_on(host) + rank % ranks_per_host; }
  bool is_inside(int other) const { return other / ranks_per_host == own_host(); }
  /// Returns all hosts except this rank's own, in cyclic order from the next host on, so that the ranks of all hosts do
  /// not begin with the same host.
  std::vector<int> others() const {
    std::vector<int> others;
    for (int step = 1; step < hosts; ++step) others.push_back((own_host() + step) % hosts);
    return others;
  }
};

/// Returns the grid as `rank` sees it. `hosts` holds for each rank the number of its host; hosts are numbered from 0 in
/// the order of ranks. `why_no_grid(hosts)` must be empty.
inline HostGrid grid_of(std::span<const int> hosts, int rank) {
  return {static_cast<int>(std::ranges::count(hosts, 0)), hosts.back() + 1, rank};
}

/// Returns one sentence that says why these hosts do not form a grid; empty if they do.
inline std::string why_no_grid(std::span<const int> hosts) {
  const auto each = static_cast<size_t>(std::ranges::count(hosts, 0));
  for (size_t rank = 0; rank < hosts.size(); ++rank)
    if (hosts[rank] != static_cast<int>(rank / each))
      return str_cat("expected ", each,
                     " consecutive ranks on each host, as on the host of rank 0, but this does not hold from rank ",
                     rank, " on");
  if (hosts.size() % each == 0) return "";
  return str_cat("expected ", each, " ranks on each host, as on the host of rank 0, found ", hosts.size() % each,
                 " on the last host");
}

}  // namespace fsdp
