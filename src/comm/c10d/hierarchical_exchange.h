#pragma once
/// \file
/// Data between several hosts, whose ranks share memory inside each.

#include "comm/c10d/exchange.h"
#include "comm/core/host_grid.h"
#include "comm/core/ranks.h"

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace fsdp {

/// Note [Two levels]. Each byte crosses between two hosts once, over as many connections as the smaller one has ranks.
///
/// - all_gather: a rank sends its slices to its deputy on each other host, and the ranks of a host pass on to each
///   other what they are deputies for.
/// - all_gather into memory that the ranks of a host share: a rank receives there what it is a deputy for, so that a
///   host has each byte once; nothing is passed on.
/// - reduce_scatter: the ranks of a host sum what they have for another host's ranks, each of them for its charges
///   there, and send these the sums.
/// - broadcast: the root sends to the first rank of each other host.
///
/// A sum is taken in rank order inside each host and then in the order of hosts. Maxima, minima, sums of integers,
/// all_to_all and messages go directly from rank to rank. Before anything happens inside a host its ranks send each
/// other headers.
///
/// Inside a host slices are equal, too: where its ranks stand for different numbers of ranks of another one, each
/// counts as if it stood for the most that one of them does. A sum of what is missing is not sent, and a gather then
/// goes through memory of its own.
class HierarchicalExchange : public DirectExchange {
 public:
  /// `host`: the ranks of this rank's host, which errors call by the global ranks that they have among `ranks`.
  HierarchicalExchange(std::shared_ptr<Mail> mail, std::shared_ptr<Communicator> host,
                       std::shared_ptr<const HostGrid> grid, Ranks ranks)
      : DirectExchange(std::move(mail), ranks.rank, ranks.world_size),
        host_(std::move(host)),
        grid_(std::move(grid)),
        ranks_(std::move(ranks)) {}

  void all_gather(GatherPlanes planes) override;
  /// The same into outputs that the ranks of each host share.
  void gather_for_host(GatherPlanes planes);
  void reduce_scatter(ReducePlanes planes) override;
  void all_reduce(std::span<const at::Tensor> flats, ReduceOp op) override;
  void broadcast(const at::Tensor& tensor, int root) override;
  /// Runs `act`, which waits for what it begins, among the ranks of this host. Waiting there ends as waiting for
  /// messages does, and what goes wrong is told as if a connection had broken, so that the roll call alone says who is
  /// to blame.
  void run_inside(const std::function<void(Communicator& host)>& act) const;

 private:
  using SumsByHost = std::vector<std::vector<at::Tensor>>;
  void meet_host() const;
  void gather(GatherPlanes planes, const std::function<void(int host)>& arrived) const;
  void gather_inside(GatherPlanes planes, int host) const;
  void sum_inside(ReducePlanes planes, int host, int64_t part, int64_t parts, std::span<const at::Tensor> sums) const;
  void send_sums(ReducePlanes planes, int host, int64_t parts) const;
  SumsByHost receive_sums(ReducePlanes planes, int64_t parts) const;
  void sum(std::span<const at::Tensor> flats);
  /// Returns for how many ranks of `host` the busiest rank of this host stands.
  int most_charges(int host) const;

  const std::shared_ptr<Communicator> host_;
  const std::shared_ptr<const HostGrid> grid_;
  const Ranks ranks_;
};

}  // namespace fsdp
