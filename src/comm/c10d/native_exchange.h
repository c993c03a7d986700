#pragma once
/// \file
/// Data over a backend's own collectives, for backends that know their network best (NCCL).

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/c10d/exchange.h"

#include <functional>
#include <memory>
#include <vector>

namespace fsdp {

/// Leaves the order of a sum to the backend. The tensors of a call are issued as one where the backend can do so. On an
/// accelerator all of it is merely issued: the current stream has the result, and the host waits for nothing.
class NativeExchange : public Exchange {
 public:
  /// `wire`: of the same order, whose deadline holds on the CPU.
  NativeExchange(c10::intrusive_ptr<c10d::Backend> backend, c10::Device device, std::shared_ptr<const Wire> wire,
                 int rank, int world_size)
      : Exchange(rank, world_size), backend_(std::move(backend)), device_(device), wire_(std::move(wire)) {}

  void all_gather(GatherPlanes planes) override;
  void reduce_scatter(ReducePlanes planes) override;
  void all_reduce(std::span<const at::Tensor> flats, ReduceOp op) override;
  void all_to_all(const at::Tensor& output, const at::Tensor& input) override;
  void broadcast(const at::Tensor& tensor, int root) override;
  void send(const at::Tensor& tensor, int peer) override;
  void recv(const at::Tensor& tensor, int peer) override;

 private:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  /// Runs `acts`, each of which begins a collective, as one, and waits.
  void run(std::span<const std::function<WorkPtr()>> acts);
  void run(const std::function<WorkPtr()>& act) { run({&act, 1}); }
  /// Runs `act`, which begins a broadcast or a message, on the bytes of `tensor`; no bytes need no message.
  void move(const at::Tensor& tensor, const std::function<WorkPtr(std::vector<at::Tensor>&)>& act);
  void end_coalescing() noexcept;
  /// On an accelerator it is the current stream that waits.
  void wait(const WorkPtr& work);

  const c10::intrusive_ptr<c10d::Backend> backend_;
  const c10::Device device_;
  const std::shared_ptr<const Wire> wire_;
};

}  // namespace fsdp
