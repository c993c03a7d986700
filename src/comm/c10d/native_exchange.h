#pragma once
/// \file
/// Data over a backend's own collectives, for backends that know their network best (NCCL).

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/c10d/exchange.h"

#include <functional>
#include <vector>

namespace fsdp {

/// Leaves the order of a sum to the backend. The tensors of a call are issued as one where the backend can do so. All
/// of it is merely issued: the current stream has the result, and the host waits for nothing.
class NativeExchange : public Exchange {
 public:
  explicit NativeExchange(c10::intrusive_ptr<c10d::Backend> backend) : backend_(std::move(backend)) {}

  void all_gather(GatherPlanes planes) override;
  void reduce_scatter(ReducePlanes planes) override;
  void all_reduce(std::span<const at::Tensor> flats, ReduceOp op) override;
  void all_to_all(const at::Tensor& output, const at::Tensor& input) override;
  void broadcast(const at::Tensor& tensor, int root) override;
  void send(const at::Tensor& tensor, int peer) override;
  void recv(const at::Tensor& tensor, int peer) override;

 private:
  using Begin = std::function<c10::intrusive_ptr<c10d::Work>()>;
  /// Runs what begins a collective each, as one; the current stream waits for it.
  void run(const std::vector<Begin>& all);
  /// Runs `begin`, a broadcast or a message, on the bytes of `tensor`; no bytes need no message.
  void move(const at::Tensor& tensor,
            const std::function<c10::intrusive_ptr<c10d::Work>(std::vector<at::Tensor>&)>& begin);

  const c10::intrusive_ptr<c10d::Backend> backend_;
};

}  // namespace fsdp
