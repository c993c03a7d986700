#include "comm/c10d/exchange.h"

#include <ATen/ops/empty.h>

#include "comm/core/fault_point.h"
#include "comm/core/pieces.h"
#include "comm/core/rank_ordered_sum.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace fsdp {
namespace {

// A reduction goes through its slices parcel by parcel; all ranks divide a slice alike.
std::vector<Parcel> chunks_of(const std::vector<at::Tensor>& slices, int world_size) {
  // Two parcels per peer live at once, so that one is summed while the next arrives.
  constexpr int64_t kBudget = int64_t{16} << 20, kLeast = int64_t{256} << 10, kMost = int64_t{4} << 20;
  return parcels_of(slices, std::clamp(kBudget / world_size, kLeast, kMost));
}

// The peers' parcels for this rank's slices: slot i % 2 holds parcel i.
class Arrivals {
 public:
  Arrivals(Mail& mail, int rank, int world_size, std::vector<Parcel> outputs)
      : mail_(mail), rank_(rank), world_size_(world_size), outputs_(std::move(outputs)) {
    for (const auto& output : outputs_) stride_ = std::max(stride_, align_slice(bytes_of(output)));
    memory_ = at::empty({std::min<int64_t>(count(), 2) * world_size * stride_}, at::kByte);
  }

  int64_t count() const { return std::ssize(outputs_); }

  void expect(int64_t i) {
    if (i >= count()) return;
    for (int step = 1; step < world_size_; ++step) {
      const int peer = (rank_ - step + world_size_) % world_size_;
      mail_.receive(peer, parcel(i, peer));
    }
  }

  void sum(int64_t i, const Parcel& own, ReduceOp op) {
    std::vector<Parcel> contributions;
    for (int rank = 0; rank < world_size_; ++rank) {
      if (rank != rank_) mail_.wait(rank);
      contributions.push_back(rank == rank_ ? own : parcel(i, rank));
    }
    const auto& outputs = output(i);
    for (size_t k = 0; k < outputs.size(); ++k) {
      std::vector<at::Tensor> of_each;
      for (const auto& contribution : contributions) of_each.push_back(contribution[k]);
      reduce_in_rank_order(outputs[k], of_each, rank_, op);
    }
  }

 private:
  const Parcel& output(int64_t i) const { return outputs_[static_cast<size_t>(i)]; }
  Parcel parcel(int64_t i, int peer) const {
    auto* memory = static_cast<std::byte*>(memory_.mutable_data_ptr());
    return parcel_in(memory + ((i % 2) * world_size_ + peer) * stride_, output(i));
  }

  Mail& mail_;
  const int rank_, world_size_;
  const std::vector<Parcel> outputs_;
  int64_t stride_ = 0;
  at::Tensor memory_;
};

}  // namespace

void DirectExchange::swap(const SlicesFor& outgoing, const SlicesFor& incoming) {
  for (int step = 1; step < world_size_; ++step) mail_.send(after(step), parcels_of(outgoing(after(step))));
  copy_bytes(incoming(rank_), outgoing(rank_));
  fault_point("slices sent");
  for (int step = 1; step < world_size_; ++step) mail_.receive(after(-step), parcels_of(incoming(after(-step))));
}

void DirectExchange::reduce(const SlicesFor& inputs, const std::vector<at::Tensor>& outputs, ReduceOp op) {
  // A parcel is sent when its receive is posted, so queueing them all at once costs the receivers no memory.
  for (int step = 1; step < world_size_; ++step) {
    const int peer = after(step);
    mail_.send(peer, chunks_of(inputs(peer), world_size_));
  }
  Arrivals arrivals(mail_, rank_, world_size_, chunks_of(outputs, world_size_));
  arrivals.expect(0);
  arrivals.expect(1);
  const auto own = chunks_of(inputs(rank_), world_size_);
  for (int64_t i = 0; i < arrivals.count(); ++i) {
    fault_point("chunk sent");
    arrivals.sum(i, own[static_cast<size_t>(i)], op);
    arrivals.expect(i + 2);
  }
  for (int step = 1; step < world_size_; ++step) mail_.check(after(-step));
}

void DirectExchange::all_gather(GatherPlanes planes) {
  const auto inputs = inputs_of(planes);
  swap([&](int) { return inputs; }, [&](int rank) { return slices_of(planes, rank); });
}

void DirectExchange::reduce_scatter(ReducePlanes planes) {
  reduce([&](int rank) { return slices_of(planes, rank); }, outputs_of(planes), ReduceOp::kSum);
}

void DirectExchange::all_reduce(std::span<const at::Tensor> flats, ReduceOp op) {
  const std::vector<at::Tensor> whole(flats.begin(), flats.end());
  if (bytes_of(whole) <= Mail::kEnclosedBytes) return reduce([&](int) { return whole; }, whole, op);
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

// In round k, ranks (counted from the root) below 2^k send to the one 2^k further.
void DirectExchange::broadcast(const at::Tensor& tensor, int root) {
  const auto parcels = parcels_of({&tensor, 1});
  const int position = (rank_ - root + world_size_) % world_size_;
  std::vector<int> children;
  for (int reach = 1; reach < world_size_; reach *= 2) {
    fault_point("broadcast spreading");
    if (position >= reach && position < 2 * reach) {
      const int parent = after(-reach);
      mail_.send(parent);
      mail_.receive(parent, parcels);
      if (!parcels.empty()) mail_.wait(parent);
    } else if (position < reach && position + reach < world_size_) {
      children.push_back(after(reach));
      mail_.send(children.back(), parcels);
    }
  }
  for (const int child : children) mail_.check(child);
}

void DirectExchange::send(const at::Tensor& tensor, int peer) {
  mail_.send(peer, parcels_of({&tensor, 1}));
  fault_point("message sent");
  mail_.check(peer);
}

void DirectExchange::recv(const at::Tensor& tensor, int peer) {
  mail_.send(peer);
  fault_point("message wanted");
  mail_.receive(peer, parcels_of({&tensor, 1}));
}

// In round k a rank hears, from the one 2^k before it, of the 2^(k + 1) ranks up to itself.
void DirectExchange::barrier() {
  for (int reach = 1; reach < world_size_; reach *= 2) {
    mail_.send(after(reach));
    mail_.check(after(-reach));
  }
}

}  // namespace fsdp
