#include "comm/c10d/enclosed_exchange.h"

#include <ATen/ops/from_blob.h>

#include "comm/core/fault_point.h"
#include "comm/core/pieces.h"
#include "comm/core/rank_ordered_sum.h"

namespace fsdp {
namespace {

// Tensors like these, behind one another in `memory`.
std::vector<at::Tensor> tensors_in(std::span<std::byte> memory, std::span<const at::Tensor> like) {
  std::vector<at::Tensor> tensors;
  int64_t begin = 0;
  for (const auto& tensor : like) {
    tensors.push_back(at::from_blob(memory.data() + begin, tensor.sizes(), tensor.options()));
    begin = align_slice(begin + static_cast<int64_t>(tensor.nbytes()));
  }
  return tensors;
}

}  // namespace

bool can_be_enclosed(std::span<const at::Tensor> tensors) {
  int64_t end = 0;
  for (const auto& tensor : tensors) end = align_slice(end) + static_cast<int64_t>(tensor.nbytes());
  return end <= static_cast<int64_t>(Handshake::kEnclosedBytes);
}

Enclosure enclosure_of(Outgoing outgoing) {
  return [outgoing = std::move(outgoing)](int peer, std::span<std::byte> memory) {
    const auto tensors = outgoing(peer);
    copy_bytes(tensors_in(memory, tensors), tensors);
  };
}

void EnclosedExchange::take(std::span<const at::Tensor> tensors, int peer) const {
  copy_bytes(tensors, tensors_in(handshake_->enclosed_by(peer), tensors));
}

void EnclosedExchange::reduce(std::span<const at::Tensor> outputs, std::span<const at::Tensor> own,
                              ReduceOp op) const {
  std::vector<std::vector<at::Tensor>> by_rank;
  for (int rank = 0; rank < world_size_; ++rank)
    by_rank.push_back(rank == rank_ ? std::vector<at::Tensor>(own.begin(), own.end())
                                    : tensors_in(handshake_->enclosed_by(rank), outputs));
  for (size_t i = 0; i < outputs.size(); ++i) {
    std::vector<at::Tensor> contributions;
    for (const auto& tensors : by_rank) contributions.push_back(tensors[i]);
    if (grid_)
      reduce_in_host_order(outputs[i], contributions, rank_, op, *grid_);
    else
      reduce_in_rank_order(outputs[i], contributions, rank_, op);
  }
}

void EnclosedExchange::all_gather(GatherPlanes planes) {
  fault_point("enclosed arrived");
  for (int rank = 0; rank < world_size_; ++rank)
    if (rank != rank_) take(slices_of(planes, rank), rank);
  copy_bytes(slices_of(planes, rank_), inputs_of(planes));
}

void EnclosedExchange::gather_for_host(GatherPlanes planes) {
  fault_point("enclosed arrived");
  for (const int host : grid_->others()) {
    const auto charges = grid_->charges(host);
    for (int rank = charges.begin; rank < charges.end; ++rank) take(slices_of(planes, rank), rank);
  }
  copy_bytes(slices_of(planes, rank_), inputs_of(planes));
}

void EnclosedExchange::reduce_scatter(ReducePlanes planes) {
  fault_point("enclosed arrived");
  reduce(outputs_of(planes), slices_of(planes, rank_), ReduceOp::kSum);
}

void EnclosedExchange::all_reduce(std::span<const at::Tensor> flats, ReduceOp op) {
  fault_point("enclosed arrived");
  reduce(flats, flats, op);
}

void EnclosedExchange::all_to_all(const at::Tensor& output, const at::Tensor& input) {
  fault_point("enclosed arrived");
  const int64_t length = input.numel() / world_size_;
  for (int rank = 0; rank < world_size_; ++rank) {
    const at::Tensor slice = slice_of(output, length, rank);
    if (rank == rank_)
      copy_bytes(slice, slice_of(input, length, rank));
    else
      take({&slice, 1}, rank);
  }
}

void EnclosedExchange::broadcast(const at::Tensor& tensor, int root) {
  fault_point("enclosed arrived");
  if (rank_ != root) take({&tensor, 1}, root);
}

void EnclosedExchange::send(const at::Tensor& /*tensor*/, int /*peer*/) { fault_point("enclosed arrived"); }

void EnclosedExchange::recv(const at::Tensor& tensor, int peer) {
  fault_point("enclosed arrived");
  take({&tensor, 1}, peer);
}

}  // namespace fsdp
