#pragma once
/// \file
/// Data over a backend's own collectives, for backends that know their network best (NCCL).

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/c10d/exchange.h"

#include <memory>
#include <utility>

namespace fsdp {

/// Uses `_allgather_base` and `_reduce_scatter_base` where all slices are equal, which leaves the order of a sum to the
/// backend; otherwise messages and sums in rank order. On an accelerator all of it is merely issued: the current stream
/// has the result, and the host waits for nothing.
class NativeExchange : public Exchange {
 public:
  /// `wire`: of the same order, whose deadline holds here too.
  NativeExchange(c10::intrusive_ptr<c10d::Backend> backend, c10::Device device, std::shared_ptr<const Wire> wire,
                 int rank, int world_size)
      : Exchange(rank, world_size), backend_(std::move(backend)), device_(device), wire_(std::move(wire)) {}

  void all_gather(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> offsets) override;
  void reduce_scatter(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> offsets,
                      ReduceOp op) override;
  void broadcast(const at::Tensor& tensor, int root) override;
  void send(const at::Tensor& tensor, int peer) override;
  void recv(const at::Tensor& tensor, int peer) override;
  Issued take_issued() override { return std::exchange(issued_, {}); }

 private:
  /// Sends outgoing[r] to rank r and fills incoming[r] from it, for every other rank r; empty tensors are left out.
  void swap(std::span<const at::Tensor> outgoing, std::span<const at::Tensor> incoming);
  /// On an accelerator it is the current stream that waits.
  void wait(const c10::intrusive_ptr<c10d::Work>& work);

  const c10::intrusive_ptr<c10d::Backend> backend_;
  const c10::Device device_;
  const std::shared_ptr<const Wire> wire_;
  Issued issued_;
};

}  // namespace fsdp
