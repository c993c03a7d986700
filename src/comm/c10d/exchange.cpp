#include "comm/c10d/exchange.h"

#include "comm/core/fault_point.h"
#include "comm/core/pieces.h"
#include "comm/core/rank_ordered_sum.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace fsdp {
namespace {

// A reduce_scatter goes through its slices chunk by chunk; all ranks cut a slice in the same chunks.
struct Chunks {
  int64_t length, chunk;

  Chunks(int64_t numel, int64_t element_bytes, int world_size) : length(numel) {
    // Two chunks per peer live at once, so that one is summed while the next arrives.
    constexpr int64_t kBudget = int64_t{16} << 20, kLeast = int64_t{256} << 10, kMost = int64_t{4} << 20;
    chunk = std::max<int64_t>(1, std::clamp(kBudget / world_size, kLeast, kMost) / element_bytes);
  }
  int64_t count() const { return (length + chunk - 1) / chunk; }
  at::Tensor of(const at::Tensor& slice, int64_t i) const {
    return slice.narrow(0, i * chunk, std::min(chunk, length - i * chunk));
  }
};

// The peers' chunks of this rank's slice: slot i % 2 holds chunk i.
class Arrivals {
 public:
  Arrivals(Wire& wire, int rank, int world_size, const at::Tensor& output)
      : wire_(wire), rank_(rank), chunks_(output.numel(), output.element_size(), world_size), output_(output) {
    const int64_t slots = std::min<int64_t>(chunks_.count(), 2);
    const int64_t length = std::min(chunks_.chunk, chunks_.length);
    memory_ = at::empty({slots, world_size, length}, output.options());
    transfers_.resize(static_cast<size_t>(2 * world_size));
  }

  void expect(int64_t i) {
    if (i >= chunks_.count()) return;
    for (int peer = 0; peer < memory_.size(1); ++peer) {
      if (peer != rank_) transfers_[slot(i, peer)] = wire_.recv(tensor(i, peer), peer, kData);
    }
  }

  void sum(int64_t i, const at::Tensor& own, ReduceOp op) {
    std::vector<at::Tensor> contributions;
    for (int rank = 0; rank < memory_.size(1); ++rank) {
      if (rank != rank_) wire_.wait(transfers_[slot(i, rank)]);
      contributions.push_back(rank == rank_ ? chunks_.of(own, i) : tensor(i, rank));
    }
    reduce_in_rank_order(chunks_.of(output_, i), contributions, rank_, op);
  }

  int64_t count() const { return chunks_.count(); }

 private:
  size_t slot(int64_t i, int peer) const { return static_cast<size_t>((i % 2) * memory_.size(1) + peer); }
  at::Tensor tensor(int64_t i, int peer) const {
    return memory_[i % 2][peer].narrow(0, 0, chunks_.of(output_, i).numel());
  }

  Wire& wire_;
  const int rank_;
  const Chunks chunks_;
  const at::Tensor& output_;
  at::Tensor memory_;
  std::vector<Wire::Transfer> transfers_;
};

}  // namespace

void Exchange::sum_scatter(const at::Tensor& output, std::vector<Piece> input, std::span<const int64_t> offsets) {
  reduce_scatter(output, assemble(std::move(input), offsets.back(), output.options()), offsets, ReduceOp::kSum);
}

void Exchange::all_reduce(const at::Tensor& flat, ReduceOp op) {
  const auto offsets = even_split(flat.numel(), world_size_);
  const at::Tensor own = slice_of(flat, offsets, rank_);
  reduce_scatter(own, flat, offsets, op);
  all_gather(flat, own, offsets);
}

void Exchange::place_own_slice(const at::Tensor& output, const at::Tensor& input,
                               std::span<const int64_t> offsets) const {
  const at::Tensor own = slice_of(output, offsets, rank_);
  // Not copy_(), which would use a pool of threads.
  if (input.numel() > 0 && own.const_data_ptr() != input.const_data_ptr())
    std::memcpy(own.mutable_data_ptr(), input.const_data_ptr(), input.nbytes());
}

void DirectExchange::all_gather(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> offsets) {
  std::vector<Wire::Transfer> transfers;
  for (int step = 1; step < world_size_; ++step) {
    const int source = (rank_ - step + world_size_) % world_size_;
    transfers.push_back(wire_.recv(slice_of(output, offsets, source), source, kData));
  }
  for (int step = 1; step < world_size_; ++step) {
    transfers.push_back(wire_.send(input, (rank_ + step) % world_size_, kData));
  }
  place_own_slice(output, input, offsets);
  fault_point("gather sent");
  for (const auto& transfer : transfers) wire_.wait(transfer);
}

void DirectExchange::reduce_scatter(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> offsets,
                                    ReduceOp op) {
  Arrivals arrivals(wire_, rank_, world_size_, output);
  arrivals.expect(0);
  arrivals.expect(1);
  // A transfer is sent when its receive is posted, so queueing them all at once costs the receivers no memory.
  std::vector<Wire::Transfer> sent;
  for (int step = 1; step < world_size_; ++step) {
    const int peer = (rank_ + step) % world_size_;
    const at::Tensor slice = slice_of(input, offsets, peer);
    const Chunks chunks(slice.numel(), slice.element_size(), world_size_);
    for (int64_t i = 0; i < chunks.count(); ++i) {
      sent.push_back(wire_.send(chunks.of(slice, i), peer, kData));
    }
  }
  const at::Tensor own = slice_of(input, offsets, rank_);
  for (int64_t i = 0; i < arrivals.count(); ++i) {
    fault_point("chunk sent");
    arrivals.sum(i, own, op);
    arrivals.expect(i + 2);
  }
  for (const auto& transfer : sent) wire_.wait(transfer);
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
