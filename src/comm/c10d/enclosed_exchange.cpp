#include "comm/c10d/enclosed_exchange.h"

#include <ATen/ops/from_blob.h>

#include "comm/core/fault_point.h"
#include "comm/core/pieces.h"
#include "comm/core/rank_ordered_sum.h"

#include <cstring>
#include <vector>

namespace fsdp {

void EnclosedExchange::take(const at::Tensor& tensor, int peer) const {
  if (tensor.numel() > 0) std::memcpy(tensor.mutable_data_ptr(), handshake_->enclosed_by(peer).data(), tensor.nbytes());
}

void EnclosedExchange::reduce(const at::Tensor& output, const at::Tensor& own, ReduceOp op) const {
  std::vector<at::Tensor> contributions;
  for (int rank = 0; rank < world_size_; ++rank) {
    contributions.push_back(
        rank == rank_ ? own : at::from_blob(handshake_->enclosed_by(rank).data(), {output.numel()}, output.options()));
  }
  if (grid_)
    reduce_in_host_order(output, contributions, rank_, op, *grid_);
  else
    reduce_in_rank_order(output, contributions, rank_, op);
}

void EnclosedExchange::all_gather(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> offsets) {
  fault_point("enclosed arrived");
  for (int rank = 0; rank < world_size_; ++rank)
    if (rank != rank_) take(slice_of(output, offsets, rank), rank);
  place_own_slice(output, input, offsets);
}

void EnclosedExchange::gather_for_host(const at::Tensor& output, const at::Tensor& input,
                                       std::span<const int64_t> offsets) {
  fault_point("enclosed arrived");
  for (const int host : grid_->others()) {
    const auto charges = grid_->charges(host);
    for (int rank = charges.begin; rank < charges.end; ++rank) take(slice_of(output, offsets, rank), rank);
  }
  place_own_slice(output, input, offsets);
}

void EnclosedExchange::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                      std::span<const int64_t> offsets, ReduceOp op) {
  fault_point("enclosed arrived");
  reduce(output, slice_of(input, offsets, rank_), op);
}

void EnclosedExchange::all_reduce(const at::Tensor& flat, ReduceOp op) {
  fault_point("enclosed arrived");
  reduce(flat, flat, op);
}

void EnclosedExchange::broadcast(const at::Tensor& tensor, int root) {
  fault_point("enclosed arrived");
  if (rank_ != root) take(tensor, root);
}

void EnclosedExchange::send(const at::Tensor& /*tensor*/, int /*peer*/) { fault_point("enclosed arrived"); }

void EnclosedExchange::recv(const at::Tensor& tensor, int peer) {
  fault_point("enclosed arrived");
  take(tensor, peer);
}

}  // namespace fsdp
