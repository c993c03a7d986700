#pragma once
/// \file
/// Which ranks are on which host, and who stands for whom on another one. Pure.

#include <span>
#include <string>
#include <vector>

#include "comm/core/text.h"

namespace fsdp {

/// Consecutive ranks, [begin, end).
struct RankRange {
  int begin = 0, end = 0;
  int size() const { return end - begin; }
};

/// Hosts, of which each has consecutive ranks.
///
/// What goes from one host to another goes to one rank there, which passes it on. The ranks of a host stand for those
/// of another one in order, each for as many as the others: where both have as many, for the one with the same number.
class HostGrid {
 public:
  /// `hosts`: by rank, the number of its host, counted from 0 in the order of ranks. See why_not.
  HostGrid(std::span<const int> hosts, int rank) : rank_(rank), own_host_(hosts[static_cast<size_t>(rank)]) {
    for (int number = 0; number < static_cast<int>(hosts.size()); ++number) {
      if (number == 0 || hosts[number] != hosts[number - 1]) ranges_.push_back({number, number});
      ++ranges_.back().end;
    }
  }

  /// Why these hosts are no grid, in one sentence; empty if they are.
  static std::string why_not(std::span<const int> hosts) {
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

  int count() const { return static_cast<int>(ranges_.size()); }
  RankRange ranks_of(int host) const { return ranges_[static_cast<size_t>(host)]; }
  /// This rank's host.
  int own_host() const { return own_host_; }
  RankRange own_ranks() const { return ranks_of(own_host_); }
  bool is_inside(int rank) const { return own_ranks().begin <= rank && rank < own_ranks().end; }
  /// The hosts but this one, each rank's next one first.
  std::vector<int> others() const {
    std::vector<int> others;
    for (int step = 1; step < count(); ++step) others.push_back((own_host_ + step) % count());
    return others;
  }

  /// The ranks of `host` for which this rank stands on its own host; itself on that one.
  RankRange charges(int host) const { return charges(host, rank_ - own_ranks().begin); }
  /// The same of the n-th rank of this host.
  RankRange charges(int host, int number) const {
    const auto theirs = ranks_of(host);
    const int here = own_ranks().size();
    return {theirs.begin + number * theirs.size() / here, theirs.begin + (number + 1) * theirs.size() / here};
  }
  /// The rank that stands for this one on `host`: the last one whose charges begin at this rank or before it.
  int deputy_on(int host) const {
    const auto here = own_ranks(), there = ranks_of(host);
    return there.begin + ((rank_ - here.begin + 1) * there.size() - 1) / here.size();
  }

 private:
  const int rank_, own_host_;
  std::vector<RankRange> ranges_;
};

}  // namespace fsdp
