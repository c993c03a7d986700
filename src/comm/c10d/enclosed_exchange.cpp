#include "comm/c10d/enclosed_exchange.h"

#include <ATen/ops/from_blob.h>

#include "comm/core/fault_point.h"
#include "comm/core/pieces.h"
#include "comm/core/rank_ordered_sum.h"

namespace fsdp {
namespace {

// Calls `visit(tensor, place)` for each of the tensors that lie behind one another in `memory`.
void visit_places(std::span<const at::Tensor> tensors, std::span<std::byte> memory, const auto& visit) {
  int64_t begin = 0;
  for (const auto& tensor : tensors) {
    visit(tensor, memory.data() + begin);
    begin = align_slice(begin + static_cast<int64_t>(tensor.nbytes()));
  }
}

}  // namespace

Enclosure Outgoing::enclosure() const {
  return [tensors_for = to](int peer, std::span<std::byte> memory) {
    visit_places(tensors_for(peer), memory, [](const at::Tensor& tensor, std::byte* place) {
      copy_bytes(place, tensor.const_data_ptr(), tensor.nbytes());
    });
  };
}

void EnclosedExchange::take(std::span<const at::Tensor> tensors, int peer) const {
  visit_places(tensors, handshake_->enclosed_by(peer), [](const at::Tensor& tensor, const std::byte* place) {
    copy_bytes(tensor.mutable_data_ptr(), place, tensor.nbytes());
  });
}

void EnclosedExchange::take_slices(GatherPlanes planes, int peer) const {
  std::vector<at::Tensor> slices;
  for (const auto& [output, input] : planes) slices.push_back(slice_of(output, input.numel(), peer));
  take(slices, peer);
}

void EnclosedExchange::reduce(std::span<const at::Tensor> outputs, std::span<const at::Tensor> own,
                              ReduceOp op) const {
  std::vector<std::vector<at::Tensor>> contributions(outputs.size());
  for (int rank = 0; rank < world_size_; ++rank) {
    auto its = contributions.begin();
    if (rank == rank_)
      for (const auto& tensor : own) (its++)->push_back(tensor);
    else
      visit_places(outputs, handshake_->enclosed_by(rank), [&](const at::Tensor& output, std::byte* place) {
        (its++)->push_back(at::from_blob(place, output.sizes(), output.options()));
      });
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (grid_)
      reduce_in_host_order(outputs[i], contributions[i], rank_, op, *grid_);
    else
      reduce_in_rank_order(outputs[i], contributions[i], rank_, op);
  }
}

void EnclosedExchange::all_gather(GatherPlanes planes) {
  fault_point("enclosed arrived");
  for (int rank = 0; rank < world_size_; ++rank)
    if (rank != rank_) take_slices(planes, rank);
  place_own_slices(planes);
}

void EnclosedExchange::gather_for_host(GatherPlanes planes) {
  fault_point("enclosed arrived");
  for (const int host : grid_->others()) {
    const auto charges = grid_->charges(host);
    for (int rank = charges.begin; rank < charges.end; ++rank) take_slices(planes, rank);
  }
  place_own_slices(planes);
}

void EnclosedExchange::reduce_scatter(ReducePlanes planes) {
  fault_point("enclosed arrived");
  std::vector<at::Tensor> outputs, own;
  for (const auto& [output, input] : planes) {
    outputs.push_back(output);
    own.push_back(slice_of(input.front().values, output.numel(), rank_));
  }
  reduce(outputs, own, ReduceOp::kSum);
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
