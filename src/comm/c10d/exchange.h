#pragma once
/// \file
/// How the data of a collective moves once the ranks have agreed that it is the same collective.

#include <ATen/core/Tensor.h>
#include <fsdp/communicator.h>

#include "comm/c10d/wire.h"

#include <memory>
#include <span>
#include <vector>

namespace fsdp {

/// Where data goes that does not come with the fingerprints.
inline constexpr auto kData = Wire::Channel::kData;

/// Runs in the lane's thread. A call returns when its result is in place; on an accelerator when it is issued, so that
/// the current stream has it.
class Exchange {
 public:
  Exchange(int rank, int world_size) : rank_(rank), world_size_(world_size) {}
  virtual ~Exchange() = default;
  /// See Communicator for the arguments of these.
  virtual void all_gather(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> offsets) = 0;
  /// The same of an output that the ranks of each host share: this rank writes there what it stands for at least, and
  /// the caller lets the ranks of the host meet after it.
  virtual void gather_for_host(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> offsets) {
    all_gather(output, input, offsets);
  }
  /// `output` is this rank's slice; it may be that slice of `input` itself.
  virtual void reduce_scatter(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> offsets,
                              ReduceOp op) = 0;
  /// A sum of contributions in pieces, which overlap no output. Unless overridden they are put together before.
  virtual void sum_scatter(const at::Tensor& output, std::vector<Piece> input, std::span<const int64_t> offsets);
  /// In place. Unless overridden: a reduce_scatter of even slices, then an all_gather.
  virtual void all_reduce(const at::Tensor& flat, ReduceOp op);
  virtual void broadcast(const at::Tensor& tensor, int root) = 0;
  virtual void send(const at::Tensor& tensor, int peer) = 0;
  virtual void recv(const at::Tensor& tensor, int peer) = 0;

  /// What goes on on an accelerator since this was asked last.
  virtual Issued take_issued() { return {}; }

 protected:
  /// Of an all_gather; the input may lie there already.
  void place_own_slice(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> offsets) const;

  const int rank_, world_size_;
};

/// Every rank exchanges with every other one by messages. Any partition; sums in rank order.
class DirectExchange : public Exchange {
 public:
  DirectExchange(std::shared_ptr<Wire> wire, int rank, int world_size)
      : Exchange(rank, world_size), wire_owner_(std::move(wire)), wire_(*wire_owner_) {}

  void all_gather(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> offsets) override;
  void reduce_scatter(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> offsets,
                      ReduceOp op) override;
  void broadcast(const at::Tensor& tensor, int root) override;
  void send(const at::Tensor& tensor, int peer) override;
  void recv(const at::Tensor& tensor, int peer) override;

 protected:
  Wire& wire() const { return wire_; }

 private:
  const std::shared_ptr<Wire> wire_owner_;
  Wire& wire_;
};

}  // namespace fsdp
