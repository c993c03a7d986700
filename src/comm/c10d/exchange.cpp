#include "comm/c10d/exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "comm/core/fault_point.h"
#include "comm/core/pieces.h"
#include "comm/core/rank_ordered_sum.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace fsdp {
namespace {

// A reduction goes through its slices chunk by chunk; all ranks cut a slice in the same chunks.
std::vector<at::Tensor> chunks_of(const std::vector<at::Tensor>& slices, int world_size) {
  // Two chunks per peer live at once, so that one is summed while the next arrives.
  constexpr int64_t kBudget = int64_t{16} << 20, kLeast = int64_t{256} << 10, kMost = int64_t{4} << 20;
  const int64_t bytes = std::clamp(kBudget / world_size, kLeast, kMost);
  std::vector<at::Tensor> chunks;
  for (const auto& slice : slices)
    for (const auto& chunk : slice.split(bytes / static_cast<int64_t>(slice.element_size())))
      if (chunk.numel() > 0) chunks.push_back(chunk);
  return chunks;
}

// The peers' chunks of this rank's slices: slot i % 2 holds chunk i.
class Arrivals {
 public:
  Arrivals(Wire& wire, int rank, int world_size, std::vector<at::Tensor> outputs)
      : wire_(wire), rank_(rank), world_size_(world_size), outputs_(std::move(outputs)) {
    for (const auto& output : outputs_) stride_ = std::max(stride_, align_slice(static_cast<int64_t>(output.nbytes())));
    memory_ = at::empty({std::min<int64_t>(count(), 2) * world_size * stride_}, at::kByte);
    transfers_.resize(static_cast<size_t>(2 * world_size));
  }

  int64_t count() const { return std::ssize(outputs_); }

  void expect(int64_t i) {
    if (i >= count()) return;
    for (int peer = 0; peer < world_size_; ++peer)
      if (peer != rank_) transfers_[slot(i, peer)] = wire_.recv(tensor(i, peer), peer, kData);
  }

  void sum(int64_t i, const at::Tensor& own, ReduceOp op) {
    std::vector<at::Tensor> contributions;
    for (int rank = 0; rank < world_size_; ++rank) {
      if (rank != rank_) wire_.wait(transfers_[slot(i, rank)]);
      contributions.push_back(rank == rank_ ? own : tensor(i, rank));
    }
    reduce_in_rank_order(output(i), contributions, rank_, op);
  }

 private:
  const at::Tensor& output(int64_t i) const { return outputs_[static_cast<size_t>(i)]; }
  size_t slot(int64_t i, int peer) const { return static_cast<size_t>((i % 2) * world_size_ + peer); }
  at::Tensor tensor(int64_t i, int peer) const {
    auto* memory = static_cast<std::byte*>(memory_.mutable_data_ptr()) + static_cast<int64_t>(slot(i, peer)) * stride_;
    return at::from_blob(memory, output(i).sizes(), output(i).options());
  }

  Wire& wire_;
  const int rank_, world_size_;
  const std::vector<at::Tensor> outputs_;
  int64_t stride_ = 0;
  at::Tensor memory_;
  std::vector<Wire::Transfer> transfers_;
};

}  // namespace

void DirectExchange::swap(const SlicesFor& outgoing, const SlicesFor& incoming) {
  std::vector<Wire::Transfer> transfers;
  for (int step = 1; step < world_size_; ++step) {
    const int source = (rank_ - step + world_size_) % world_size_;
    for (const auto& slice : incoming(source)) transfers.push_back(wire_.recv(slice, source, kData));
  }
  for (int step = 1; step < world_size_; ++step) {
    const int peer = (rank_ + step) % world_size_;
    for (const auto& slice : outgoing(peer)) transfers.push_back(wire_.send(slice, peer, kData));
  }
  copy_bytes(incoming(rank_), outgoing(rank_));
  fault_point("slices sent");
  for (const auto& transfer : transfers) wire_.wait(transfer);
}

void DirectExchange::reduce(const SlicesFor& inputs, const std::vector<at::Tensor>& outputs, ReduceOp op) {
  Arrivals arrivals(wire_, rank_, world_size_, chunks_of(outputs, world_size_));
  arrivals.expect(0);
  arrivals.expect(1);
  // A transfer is sent when its receive is posted, so queueing them all at once costs the receivers no memory.
  std::vector<Wire::Transfer> sent;
  for (int step = 1; step < world_size_; ++step) {
    const int peer = (rank_ + step) % world_size_;
    for (const auto& chunk : chunks_of(inputs(peer), world_size_)) sent.push_back(wire_.send(chunk, peer, kData));
  }
  const auto own = chunks_of(inputs(rank_), world_size_);
  for (int64_t i = 0; i < arrivals.count(); ++i) {
    fault_point("chunk sent");
    arrivals.sum(i, own[static_cast<size_t>(i)], op);
    arrivals.expect(i + 2);
  }
  for (const auto& transfer : sent) wire_.wait(transfer);
}

void DirectExchange::all_gather(GatherPlanes planes) {
  const auto inputs = inputs_of(planes);
  swap([&](int) { return inputs; }, [&](int rank) { return slices_of(planes, rank); });
}

void DirectExchange::reduce_scatter(ReducePlanes planes) {
  reduce([&](int rank) { return slices_of(planes, rank); }, outputs_of(planes), ReduceOp::kSum);
}

void DirectExchange::all_reduce(std::span<const at::Tensor> flats, ReduceOp op) {
  const auto slices = [&](int rank) {
    std::vector<at::Tensor> of_rank;
    for (const auto& flat : flats) of_rank.push_back(slice_of(flat, divide_up(flat.numel(), world_size_), rank));
    return of_rank;
  };
  const auto own = slices(rank_);
  reduce(slices, own, op);
  swap([&](int) { return own; }, slices);
}

void DirectExchange::all_to_all(const at::Tensor& output, const at::Tensor& input) {
  const auto slices_in = [length = input.numel() / world_size_](const at::Tensor& flat) {
    return [&flat, length](int rank) { return std::vector{slice_of(flat, length, rank)}; };
  };
  swap(slices_in(input), slices_in(output));
}

// A binomial tree: in round k, ranks (counted from the root) below 2^k send to the one 2^k further.
void DirectExchange::broadcast(const at::Tensor& tensor, int root) {
  const int position = (rank_ - root + world_size_) % world_size_;
  std::vector<Wire::Transfer> sent;
  for (int reach = 1; reach < world_size_; reach *= 2) {
    fault_point("broadcast spreading");
    if (position >= reach && position < 2 * reach) {
      wire_.wait(wire_.recv(tensor, (rank_ - reach + world_size_) % world_size_, kData));
    } else if (position < reach && position + reach < world_size_) {
      sent.push_back(wire_.send(tensor, (rank_ + reach) % world_size_, kData));
    }
  }
  for (const auto& transfer : sent) wire_.wait(transfer);
}

void DirectExchange::send(const at::Tensor& tensor, int peer) {
  const auto transfer = wire_.send(tensor, peer, kData);
  fault_point("message sent");
  wire_.wait(transfer);
}

void DirectExchange::recv(const at::Tensor& tensor, int peer) {
  const auto transfer = wire_.recv(tensor, peer, kData);
  fault_point("message wanted");
  wire_.wait(transfer);
}

}  // namespace fsdp
