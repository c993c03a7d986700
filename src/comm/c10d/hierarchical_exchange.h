#pragma once
/// \file
/// Data between several hosts, whose ranks share memory inside each.

#include "comm/c10d/exchange.h"
#include "comm/c10d/inside.h"
#include "comm/core/host_grid.h"

#include <memory>
#include <utility>
#include <vector>

namespace fsdp {

/// Note [Two levels]. Each byte crosses between two hosts once, over as many connections as the smaller one has ranks.
///
/// - all_gather: a rank sends its slice to its deputy on each other host, and the ranks of a host pass on to each other
///   what they are deputies for.
/// - all_gather into memory that the ranks of a host share: a rank receives there what it is a deputy for, so that a
///   host has each byte once; nothing is passed on.
/// - reduce_scatter: the ranks of a host sum what they have for another host's ranks, each of them for its charges
///   there, and send these the sums.
/// - broadcast: the root sends to the first rank of each other host.
///
/// A sum is taken in rank order inside each host and then in the order of hosts. Maxima, minima, sums of integers
/// and messages go directly from rank to rank.
class HierarchicalExchange : public DirectExchange {
 public:
  HierarchicalExchange(std::shared_ptr<Wire> wire, std::shared_ptr<const Inside> inside,
                       std::shared_ptr<const HostGrid> grid, int rank, int world_size)
      : DirectExchange(std::move(wire), rank, world_size), inside_(std::move(inside)), grid_(std::move(grid)) {}

  void all_gather(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> offsets) override;
  void gather_for_host(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> offsets) override;
  void reduce_scatter(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> offsets,
                      ReduceOp op) override;
  void sum_scatter(const at::Tensor& output, std::vector<Piece> input, std::span<const int64_t> offsets) override;
  void broadcast(const at::Tensor& tensor, int root) override;

 private:
  struct Slices;
  using Transfers = std::vector<Wire::Transfer>;
  std::vector<Transfers> receive_slices(const at::Tensor& output, std::span<const int64_t> offsets) const;
  Transfers send_to_deputies(const at::Tensor& slice) const;
  Slices slices_of_host(const at::Tensor& flat, std::span<const int64_t> offsets, int host) const;
  void gather_inside(const at::Tensor& output, std::span<const int64_t> offsets, int host) const;
  struct Part;
  struct OnTheWay;
  void reduce_inside(const at::Tensor& output, std::span<const Piece> input, std::span<const int64_t> offsets, int host,
                     Part part) const;
  void send_sums(std::span<const Piece> input, std::span<const int64_t> offsets, int host, int64_t parts,
                 const at::TensorOptions& options, OnTheWay& sent) const;

  const std::shared_ptr<const Inside> inside_;
  const std::shared_ptr<const HostGrid> grid_;
};

}  // namespace fsdp
