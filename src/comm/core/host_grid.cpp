#include "comm/core/host_grid.h"

#include "comm/core/text.h"

namespace fsdp {

HostGrid::HostGrid(std::span<const int> hosts, int rank) : rank_(rank), own_host_(hosts[static_cast<size_t>(rank)]) {
  for (int number = 0; number < static_cast<int>(hosts.size()); ++number) {
    if (number == 0 || hosts[number] != hosts[number - 1]) ranges_.push_back({number, number});
    ++ranges_.back().end;
  }
}

std::string HostGrid::why_not(std::span<const int> hosts) {
  int highest = -1;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    if (rank > 0 && hosts[rank] == hosts[rank - 1]) continue;
    if (hosts[rank] <= highest)
      return str_cat("expected consecutive ranks on each host, found rank ", rank,
                     " on the host of lower ranks and rank ", rank - 1, " on another one");
    highest = hosts[rank];
  }
  return "";
}

std::vector<int> HostGrid::others() const {
  std::vector<int> others;
  for (int step = 1; step < count(); ++step) others.push_back((own_host_ + step) % count());
  return others;
}

RankRange HostGrid::charges(int host, int number) const {
  const auto theirs = ranks_of(host);
  const int here = own_ranks().size();
  return {theirs.begin + number * theirs.size() / here, theirs.begin + (number + 1) * theirs.size() / here};
}

// The last one whose charges begin at this rank or before it.
int HostGrid::deputy_on(int host) const {
  const auto here = own_ranks(), there = ranks_of(host);
  return there.begin + ((rank_ - here.begin + 1) * there.size() - 1) / here.size();
}

}  // namespace fsdp
