#include "comm/c10d/exchange.h"

#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <array>
#include <exception>
#include <vector>

namespace fsdp {
namespace {

// Returns the bytes of a tensor that is moved and not summed: NCCL supports fewer dtypes than LibTorch, for instance no
// 16-bit integers.
at::Tensor byte_view(const at::Tensor& tensor) { return tensor.view({-1}).view(at::kByte); }

// Returns a tensor that the backend can sum: the given one, or a converted copy.
at::Tensor summable(const at::Tensor& tensor) {
  constexpr std::array kKnown{at::kByte, at::kChar,  at::kInt,    at::kLong,
                              at::kHalf, at::kFloat, at::kDouble, at::kBFloat16};
  if (tensor.is_complex()) return summable(at::view_as_real(tensor));
  if (std::ranges::find(kKnown, tensor.scalar_type()) != kKnown.end()) return tensor;
  return tensor.to(tensor.is_floating_point() ? at::kFloat : at::kLong);
}

void put_back(const at::Tensor& tensor, const at::Tensor& summed) {
  if (tensor.is_complex()) return put_back(at::view_as_real(tensor), summed);
  if (tensor.const_data_ptr() != summed.const_data_ptr()) tensor.copy_(summed);
}

}  // namespace

void NativeExchange::run(const std::vector<Begin>& all) {
  // wait() gets no timeout, because with one the host would wait too.
  if (all.size() <= 1 || !backend_->supportsCoalescing()) {
    for (const auto& begin : all) begin()->wait();
    return;
  }
  backend_->startCoalescing();
  std::exception_ptr error;
  try {
    for (const auto& begin : all) begin();
  } catch (...) {
    error = std::current_exception();
  }
  // endCoalescing() is called even after an error, because the group of launches would otherwise stay open for this
  // thread's next collective.
  try {
    if (const auto work = backend_->endCoalescing()) work->wait();
  } catch (...) {
    if (!error) throw;
  }
  if (error) std::rethrow_exception(error);
}

void NativeExchange::all_gather(GatherPlanes planes) {
  std::vector<Begin> acts;
  for (const auto& plane : planes)
    if (plane.input.numel() > 0)
      acts.emplace_back([&] {
        at::Tensor whole = byte_view(plane.output), own = byte_view(plane.input);
        return backend_->_allgather_base(whole, own);
      });
  run(acts);
}

void NativeExchange::reduce_scatter(ReducePlanes planes) {
  struct Plane {
    at::Tensor whole, own;
  };
  std::vector<Plane> summed;
  for (const auto& [output, input] : planes) summed.push_back({summable(input.front().values), summable(output)});
  std::vector<Begin> acts;
  for (auto& plane : summed)
    if (plane.own.numel() > 0)
      acts.emplace_back([&] { return backend_->_reduce_scatter_base(plane.own, plane.whole); });
  run(acts);
  for (size_t i = 0; i < planes.size(); ++i) put_back(planes[i].output, summed[i].own);
}

void NativeExchange::all_reduce(std::span<const at::Tensor> flats, ReduceOp op) {
  std::vector<at::Tensor> summed;
  for (const auto& flat : flats) summed.push_back(summable(flat));
  std::vector<Begin> acts;
  for (const auto& tensor : summed)
    if (tensor.numel() > 0)
      acts.emplace_back([&] {
        std::vector<at::Tensor> tensors{tensor};
        c10d::AllreduceOptions options;
        options.reduceOp = op == ReduceOp::kMax   ? c10d::ReduceOp::MAX
                           : op == ReduceOp::kMin ? c10d::ReduceOp::MIN
                                                  : c10d::ReduceOp::SUM;
        return backend_->allreduce(tensors, options);
      });
  run(acts);
  for (size_t i = 0; i < flats.size(); ++i) put_back(flats[i], summed[i]);
}

void NativeExchange::all_to_all(const at::Tensor& output, const at::Tensor& input) {
  move(input, [&](auto& from) {
    at::Tensor to = byte_view(output);
    std::vector<int64_t> equal;
    return backend_->alltoall_base(to, from.front(), equal, equal);
  });
}

void NativeExchange::move(const at::Tensor& tensor,
                          const std::function<c10::intrusive_ptr<c10d::Work>(std::vector<at::Tensor>&)>& begin) {
  if (tensor.numel() == 0) return;
  std::vector<at::Tensor> tensors{byte_view(tensor)};
  begin(tensors)->wait();
}

void NativeExchange::broadcast(const at::Tensor& tensor, int root) {
  c10d::BroadcastOptions options;
  options.rootRank = root;
  move(tensor, [&](auto& tensors) { return backend_->broadcast(tensors, options); });
}

void NativeExchange::send(const at::Tensor& tensor, int peer) {
  move(tensor, [&](auto& tensors) { return backend_->send(tensors, peer, 0); });
}

void NativeExchange::recv(const at::Tensor& tensor, int peer) {
  move(tensor, [&](auto& tensors) { return backend_->recv(tensors, peer, 0); });
}

}  // namespace fsdp
