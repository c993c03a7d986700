#pragma once
/// \file
/// Data so small that it goes with the fingerprints.

#include "comm/c10d/exchange.h"
#include "comm/c10d/handshake.h"
#include "comm/core/host_grid.h"

#include <memory>

namespace fsdp {

/// What a rank has for each other one.
struct Outgoing {
  /// The most that goes from one rank to another, in elements: the same on every rank if the fingerprints are.
  int64_t most;
  Enclosure to;
};

/// Whether it fits beside the fingerprints. Decided alike on all ranks.
inline bool can_be_enclosed(const Outgoing& outgoing, const at::Tensor& data) {
  return data.is_cpu() && static_cast<size_t>(outgoing.most) * data.element_size() <= Handshake::kEnclosedBytes;
}

/// Needs no message: what every rank has for this one came with its fingerprint. Any partition. Sums in rank order, or
/// in that of hosts: the bits are those of DirectExchange or of HierarchicalExchange. CPU only.
///
/// What a rank encloses for a peer: all_gather and all_reduce: its input; reduce_scatter: the peer's slice; broadcast:
/// the root's tensor; a message: the sender's.
class EnclosedExchange : public Exchange {
 public:
  /// `grid`: of the hosts, whose order sums take; null: they take the order of ranks.
  EnclosedExchange(std::shared_ptr<const Handshake> handshake, int rank, int world_size,
                   std::shared_ptr<const HostGrid> grid = nullptr)
      : Exchange(rank, world_size), handshake_(std::move(handshake)), grid_(std::move(grid)) {}

  void all_gather(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> offsets) override;
  void gather_for_host(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> offsets) override;
  void reduce_scatter(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> offsets,
                      ReduceOp op) override;
  void all_reduce(const at::Tensor& flat, ReduceOp op) override;
  void broadcast(const at::Tensor& tensor, int root) override;
  void send(const at::Tensor& tensor, int peer) override;
  void recv(const at::Tensor& tensor, int peer) override;

 private:
  void take(const at::Tensor& tensor, int peer) const;
  void reduce(const at::Tensor& output, const at::Tensor& own, ReduceOp op) const;

  const std::shared_ptr<const Handshake> handshake_;
  const std::shared_ptr<const HostGrid> grid_;
};

}  // namespace fsdp
