#pragma once
/// \file
/// Tensors that go round the ranks.

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <fsdp/communicator.h>

#include <memory>
#include <utility>

#include "comm/core/fault_point.h"

namespace fsdp::parallel {

/// Gives a tensor to the next rank and takes the previous rank's, over and over.
class Rotation {
 public:
  Rotation(std::shared_ptr<Communicator> ranks, Tag tag) : ranks_(std::move(ranks)), tag_(std::move(tag)) {}
  /// Does not wait. `outgoing` is flat and stays as it is until the other one has arrived.
  void start(const at::Tensor& outgoing) {
    const int rank = ranks_->rank(), world = ranks_->world_size();
    incoming_ = at::empty_like(outgoing);
    work_ = ranks_->send_recv(outgoing, (rank + 1) % world, incoming_, (rank + world - 1) % world, tag_);
  }
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

/// Calls visit(source, that rank's tensor) for each rank, this one first, while the next one is on its way. No more than
/// these two are in memory, if the caller keeps no reference to its own.
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

/// Keys and values, or their gradients, as one flat tensor.
inline at::Tensor packed(const at::Tensor& key, const at::Tensor& value) {
  return at::cat({key.reshape({-1}), value.reshape({-1})});
}
/// Views of such a tensor, with the sizes of these.
inline std::pair<at::Tensor, at::Tensor> unpacked(const at::Tensor& flat, const at::Tensor& key,
                                                  const at::Tensor& value) {
  return {flat.narrow(0, 0, key.numel()).view(key.sizes()),
          flat.narrow(0, key.numel(), value.numel()).view(value.sizes())};
}

}  // namespace fsdp::parallel
