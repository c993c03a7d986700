#pragma once
/// \file
/// Passing of tensors around a ring of ranks.

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <fsdp/communicator.h>

#include <memory>
#include <utility>

#include "comm/core/fault_point.h"

namespace fsdp::parallel {

/// Sends a tensor to the next rank of the ring and receives one of the same size from the previous rank. Call `arrived`
/// once after each `start`. Both are collective.
class Rotation {
 public:
  Rotation(std::shared_ptr<Communicator> ranks, Tag tag) : ranks_(std::move(ranks)), tag_(std::move(tag)) {}
  /// Starts to send and to receive, and does not wait. `outgoing` has one dim and must not be changed before `arrived`
  /// returns.
  void start(const at::Tensor& outgoing) {
    const int rank = ranks_->rank(), world = ranks_->world_size();
    incoming_ = at::empty_like(outgoing);
    work_ = ranks_->send_recv(outgoing, (rank + 1) % world, incoming_, (rank + world - 1) % world, tag_);
  }
  /// Waits, and returns the previous rank's tensor.
  at::Tensor arrived() {
    work_->wait();
    return std::move(incoming_);
  }

 private:
  const std::shared_ptr<Communicator> ranks_;
  const Tag tag_;
  std::shared_ptr<Work> work_;
  at::Tensor incoming_;
};

/// Calls visit(source, tensor) with the tensor `held` of each rank `source`, this rank first. While `visit` runs, the
/// next tensor is received. At most two tensors are in memory at a time if the caller keeps no reference to `held`.
/// Collective.
template <class Visit>
void go_round(const std::shared_ptr<Communicator>& ranks, Tag tag, at::Tensor held, const Visit& visit) {
  Rotation rotation(ranks, std::move(tag));
  const int64_t rank = ranks->rank(), world = ranks->world_size();
  for (int64_t step = 0; step < world; ++step) {
    const bool is_last = step + 1 == world;
    if (!is_last) rotation.start(held);
    fault_point("block at hand");
    visit((rank + world - step) % world, held);
    if (!is_last) held = rotation.arrived();
  }
}

/// Returns a copy of keys and values, or of their gradients, in one tensor with one dim.
inline at::Tensor packed(const at::Tensor& key, const at::Tensor& value) {
  return at::cat({key.reshape({-1}), value.reshape({-1})});
}
/// Returns the two parts of a tensor that `packed` made, as views with the sizes of `key` and `value`.
inline std::pair<at::Tensor, at::Tensor> unpacked(const at::Tensor& flat, const at::Tensor& key,
                                                  const at::Tensor& value) {
  return {flat.narrow(0, 0, key.numel()).view(key.sizes()),
          flat.narrow(0, key.numel(), value.numel()).view(value.sizes())};
}

}  // namespace fsdp::parallel
