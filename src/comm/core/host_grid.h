#pragma once
/// \file
/// Which ranks are on which host. Pure.

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "comm/core/text.h"

namespace fsdp {

/// Hosts that have as many consecutive ranks each. What goes from a rank to another host goes to the one that has the
/// same number there, its counterpart, which passes it on.
struct HostGrid {
  int ranks_per_host = 1, hosts = 1, rank = 0;

  int own_host() const { return rank / ranks_per_host; }
  int first_on(int host) const { return host * ranks_per_host; }
  int counterpart_on(int host) const { return first_on(host) + rank % ranks_per_host; }
  bool is_inside(int other) const { return other / ranks_per_host == own_host(); }
  /// The hosts but this one, each rank's next one first.
  std::vector<int> others() const {
    std::vector<int> others;
    for (int step = 1; step < hosts; ++step) others.push_back((own_host() + step) % hosts);
    return others;
  }
};

/// `hosts`: by rank, the number of its host, counted from 0 in the order of ranks. See why_no_grid.
inline HostGrid grid_of(std::span<const int> hosts, int rank) {
  return {static_cast<int>(std::ranges::count(hosts, 0)), hosts.back() + 1, rank};
}

/// Why these hosts are no grid, in one sentence; empty if they are.
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
