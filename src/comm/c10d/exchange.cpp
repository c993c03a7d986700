#include "comm/c10d/exchange.h"

#include <ATen/ops/empty.h>

#include "comm/core/fault_point.h"
#include "comm/core/pieces.h"

#include <algorithm>

namespace fsdp {
namespace {

// Divides slices into parcels (see mail.h), which a reduction processes one after another. All ranks divide a slice in
// the same way.
std::vector<Parcel> chunks_of(const std::vector<at::Tensor>& slices, int world_size) {
  // Two parcels of each peer are in memory at a time, so that one is summed while the next arrives.
  constexpr int64_t kBudget = int64_t{16} << 20, kLeast = int64_t{256} << 10, kMost = int64_t{4} << 20;
  return parcels_of(slices, std::clamp(kBudget / world_size, kLeast, kMost));
}

}  // namespace

void reduce_each(std::span<const at::Tensor> outputs, std::span<const std::vector<at::Tensor>> contributions, int own,
                 ReduceOp op) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    std::vector<at::Tensor> of_each;
    for (const auto& tensors : contributions) of_each.push_back(tensors[i]);
    reduce_in_rank_order(outputs[i], of_each, own, op);
  }
}

void DirectExchange::swap(const SlicesFor& outgoing, const SlicesFor& incoming) {
  for (int step = 1; step < world_size_; ++step) mail_->send(after(step), parcels_of(outgoing(after(step))));
  fault_point("slices sent");
  for (int step = 1; step < world_size_; ++step) mail_->receive(after(-step), parcels_of(incoming(after(-step))));
  mail_->agree();
  copy_bytes(incoming(rank_), outgoing(rank_));
}

void DirectExchange::reduce(const SlicesFor& inputs, const std::vector<at::Tensor>& outputs, ReduceOp op) {
  // Gloo sends a parcel only when its receive is posted, so queueing all of them at once costs the receivers no memory.
  for (int step = 1; step < world_size_; ++step) {
    const int peer = after(step);
    mail_->send(peer, chunks_of(inputs(peer), world_size_));
  }
  const auto chunks = chunks_of(outputs, world_size_), own = chunks_of(inputs(rank_), world_size_);
  int64_t stride = 0;
  for (const auto& chunk : chunks) stride = std::max(stride, align_slice(bytes_of(chunk)));
  const at::Tensor memory = at::empty({std::min<int64_t>(std::ssize(chunks), 2) * world_size_ * stride}, at::kByte);
  const auto slot = [&](size_t i, int peer) {
    return parcel_in(memory.narrow(0, (static_cast<int64_t>(i % 2) * world_size_ + peer) * stride, stride), chunks[i]);
  };
  const auto expect = [&](size_t i) {
    for (int step = 1; i < chunks.size() && step < world_size_; ++step)
      mail_->receive(after(-step), {slot(i, after(-step))});
  };
  expect(0);
  expect(1);
  mail_->agree();
  for (size_t i = 0; i < chunks.size(); ++i) {
    fault_point("chunk sent");
    std::vector<Parcel> contributions;
    for (int rank = 0; rank < world_size_; ++rank) {
      if (rank != rank_) mail_->wait(rank);
      contributions.push_back(rank == rank_ ? own[i] : slot(i, rank));
    }
    reduce_each(chunks[i], contributions, rank_, op);
    expect(i + 2);
  }
}

void DirectExchange::all_gather(GatherPlanes planes) {
  swap([&](int) { return inputs_of(planes); }, [&](int rank) { return slices_of(planes, rank); });
}

void DirectExchange::reduce_scatter(ReducePlanes planes) {
  reduce([&](int rank) { return slices_of(planes, rank); }, outputs_of(planes), ReduceOp::kSum);
}

void DirectExchange::all_reduce(std::span<const at::Tensor> flats, ReduceOp op) {
  const std::vector<at::Tensor> whole(flats.begin(), flats.end());
  if (world_size_ * bytes_of(whole) <= 2 * Mail::kEnclosedBytes) return reduce([&](int) { return whole; }, whole, op);
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

// In round k, each rank below 2^k sends to the rank 2^k further. Ranks are counted from the root.
void DirectExchange::broadcast(const at::Tensor& tensor, int root) {
  const auto parcels = parcels_of({&tensor, 1});
  const int position = (rank_ - root + world_size_) % world_size_;
  for (int reach = 1; reach < world_size_; reach *= 2) {
    fault_point("broadcast spreading");
    if (position >= reach && position < 2 * reach) {
      mail_->send(after(-reach));
      mail_->receive(after(-reach), parcels);
      if (!parcels.empty()) mail_->wait(after(-reach));
    } else if (position < reach && position + reach < world_size_) {
      mail_->send(after(reach), parcels);
    }
  }
}

void DirectExchange::send(const at::Tensor& tensor, int peer) {
  mail_->send(peer, parcels_of({&tensor, 1}));
  fault_point("message sent");
}

void DirectExchange::recv(const at::Tensor& tensor, int peer) {
  mail_->send(peer);
  fault_point("message wanted");
  mail_->receive(peer, parcels_of({&tensor, 1}));
}

// In round k a rank gets a header from the rank 2^k before it and then knows that the 2^(k + 1) ranks up to itself have
// arrived.
void DirectExchange::barrier() {
  for (int reach = 1; reach < world_size_; reach *= 2) {
    mail_->send(after(reach), {}, false);
    mail_->check(after(-reach));
  }
}

}  // namespace fsdp
