#pragma once
/// \file
/// Data so small that it goes with the fingerprints.

#include "comm/c10d/exchange.h"
#include "comm/c10d/handshake.h"
#include "comm/core/host_grid.h"

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace fsdp {

/// The tensors that a rank has for each other one, or none: all_gather: its inputs; reduce_scatter and all_to_all: the
/// peer's slices; all_reduce: its tensors; broadcast: the root's tensor; a message: the sender's.
using Outgoing = std::function<std::vector<at::Tensor>(int peer)>;

/// Whether tensors like these fit beside the fingerprints, each from a multiple of 16 bytes on.
bool can_be_enclosed(std::span<const at::Tensor> tensors);
Enclosure enclosure_of(Outgoing outgoing);

/// Needs no message: what every rank has for this one came with its fingerprint, see Outgoing. Sums in rank order, or
/// in that of hosts: the bits are those of DirectExchange or of HierarchicalExchange. CPU only.
class EnclosedExchange : public Exchange {
 public:
  /// `grid`: of the hosts, whose order sums take; null: they take the order of ranks.
  EnclosedExchange(std::shared_ptr<const Handshake> handshake, int rank, int world_size,
                   std::shared_ptr<const HostGrid> grid = nullptr)
      : Exchange(rank, world_size), handshake_(std::move(handshake)), grid_(std::move(grid)) {}

  void all_gather(GatherPlanes planes) override;
  void gather_for_host(GatherPlanes planes) override;
  void reduce_scatter(ReducePlanes planes) override;
  void all_reduce(std::span<const at::Tensor> flats, ReduceOp op) override;
  void all_to_all(const at::Tensor& output, const at::Tensor& input) override;
  void broadcast(const at::Tensor& tensor, int root) override;
  void send(const at::Tensor& tensor, int peer) override;
  void recv(const at::Tensor& tensor, int peer) override;

 private:
  /// Fills `tensors` with what `peer` enclosed.
  void take(std::span<const at::Tensor> tensors, int peer) const;
  /// What each rank enclosed is for tensors like `outputs`; this rank's own is `own`.
  void reduce(std::span<const at::Tensor> outputs, std::span<const at::Tensor> own, ReduceOp op) const;

  const std::shared_ptr<const Handshake> handshake_;
  const std::shared_ptr<const HostGrid> grid_;
};

}  // namespace fsdp
