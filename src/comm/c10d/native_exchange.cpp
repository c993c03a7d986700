#include "comm/c10d/native_exchange.h"

#include <ATen/ops/empty.h>

#include "comm/core/pieces.h"
#include "comm/core/rank_ordered_sum.h"

#include <vector>

namespace fsdp {
namespace {

bool parts_are_equal(std::span<const int64_t> offsets) {
  for (size_t i = 1; i < offsets.size(); ++i) {
    if (offsets[i] - offsets[i - 1] != offsets[1]) return false;
  }
  return offsets.back() > 0;
}

// What is moved and not summed: NCCL knows fewer dtypes than LibTorch, and no 16-bit integers.
at::Tensor byte_view(const at::Tensor& tensor) { return tensor.view({-1}).view(at::kByte); }

c10d::ReduceOp::RedOpType c10d_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    default:
      return c10d::ReduceOp::SUM;
  }
}

}  // namespace

void NativeExchange::wait(const c10::intrusive_ptr<c10d::Work>& work) {
  if (!work) return;
  if (device_.is_cpu()) {
    if (!work->wait(wire_->time_left())) throw Interrupted();
    return;
  }
  work->wait();  // with a timeout the host would wait, too
  issued_.push_back(work);
}

void NativeExchange::swap(std::span<const at::Tensor> outgoing, std::span<const at::Tensor> incoming) {
  // Unless they are issued as one, NCCL runs messages one after another, and two ranks that send first never receive.
  const bool as_one = backend_->supportsCoalescing();
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  if (as_one) backend_->startCoalescing();
  for (int step = 1; step < world_size_; ++step) {
    const int to = (rank_ + step) % world_size_, from = (rank_ - step + world_size_) % world_size_;
    std::vector<at::Tensor> sent{byte_view(outgoing[to])}, received{byte_view(incoming[from])};
    if (sent[0].numel() > 0) works.push_back(backend_->send(sent, to, 0));
    if (received[0].numel() > 0) works.push_back(backend_->recv(received, from, 0));
  }
  if (as_one) works = {backend_->endCoalescing()};
  for (const auto& work : works) wait(work);
}

void NativeExchange::all_gather(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> offsets) {
  if (parts_are_equal(offsets)) {
    at::Tensor whole = byte_view(output), own = byte_view(input);
    return wait(backend_->_allgather_base(whole, own));
  }
  const at::Tensor place = slice_of(output, offsets, rank_);
  if (place.const_data_ptr() != input.const_data_ptr()) place.copy_(input);
  std::vector<at::Tensor> outgoing, incoming;
  for (int rank = 0; rank < world_size_; ++rank) {
    outgoing.push_back(input);
    incoming.push_back(slice_of(output, offsets, rank));
  }
  swap(outgoing, incoming);
}

void NativeExchange::reduce_scatter(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> offsets,
                                    ReduceOp op) {
  if (parts_are_equal(offsets)) {
    at::Tensor own = output, whole = input;
    c10d::ReduceScatterOptions options;
    options.reduceOp = c10d_op(op);
    return wait(backend_->_reduce_scatter_base(own, whole, options));
  }
  std::vector<at::Tensor> outgoing, incoming;
  const at::Tensor memory = at::empty({world_size_, output.numel()}, output.options());
  for (int rank = 0; rank < world_size_; ++rank) {
    outgoing.push_back(slice_of(input, offsets, rank));
    incoming.push_back(rank == rank_ ? outgoing.back() : memory[rank]);
  }
  swap(outgoing, incoming);
  reduce_in_rank_order(output, incoming, rank_, op);
}

void NativeExchange::broadcast(const at::Tensor& tensor, int root) {
  if (tensor.numel() == 0) return;
  std::vector<at::Tensor> tensors{byte_view(tensor)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  wait(backend_->broadcast(tensors, options));
}

void NativeExchange::send(const at::Tensor& tensor, int peer) {
  if (tensor.numel() == 0) return;
  std::vector<at::Tensor> tensors{byte_view(tensor)};
  wait(backend_->send(tensors, peer, 0));
}

void NativeExchange::recv(const at::Tensor& tensor, int peer) {
  if (tensor.numel() == 0) return;
  std::vector<at::Tensor> tensors{byte_view(tensor)};
  wait(backend_->recv(tensors, peer, 0));
}

}  // namespace fsdp
