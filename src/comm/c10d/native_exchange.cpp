#include "comm/c10d/native_exchange.h"

#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <array>
#include <vector>

namespace fsdp {
namespace {

// What is moved and not summed: NCCL knows fewer dtypes than LibTorch, and no 16-bit integers.
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

void NativeExchange::wait(const WorkPtr& work) {
  if (!work) return;
  if (device_.is_cpu()) {
    if (!work->wait(wire_->time_left())) throw Interrupted();
    return;
  }
  work->wait();  // with a timeout the host would wait, too
}

// Closes the group of launches after an error, because it would stay open for this thread's next collective.
void NativeExchange::end_coalescing() noexcept {
  try {
    static_cast<void>(backend_->endCoalescing());
  } catch (const std::exception&) {
    // The error that led here says what is wrong.
  }
}

void NativeExchange::run(std::span<const std::function<WorkPtr()>> acts) {
  if (acts.size() == 1 || !backend_->supportsCoalescing()) {
    for (const auto& act : acts) wait(act());
  } else if (!acts.empty()) {
    backend_->startCoalescing();
    try {
      for (const auto& act : acts) act();
    } catch (...) {
      end_coalescing();
      throw;
    }
    wait(backend_->endCoalescing());
  }
}

void NativeExchange::all_gather(GatherPlanes planes) {
  std::vector<std::function<WorkPtr()>> acts;
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
  std::vector<std::function<WorkPtr()>> acts;
  for (auto& plane : summed)
    if (plane.own.numel() > 0)
      acts.emplace_back([&] { return backend_->_reduce_scatter_base(plane.own, plane.whole); });
  run(acts);
  for (size_t i = 0; i < planes.size(); ++i) put_back(planes[i].output, summed[i].own);
}

void NativeExchange::all_reduce(std::span<const at::Tensor> flats, ReduceOp op) {
  std::vector<at::Tensor> summed;
  for (const auto& flat : flats) summed.push_back(summable(flat));
  std::vector<std::function<WorkPtr()>> acts;
  for (const auto& tensor : summed)
    if (tensor.numel() > 0)
      acts.emplace_back([&] {
        std::vector<at::Tensor> tensors{tensor};
        c10d::AllreduceOptions options;
        options.reduceOp = c10d_op(op);
        return backend_->allreduce(tensors, options);
      });
  run(acts);
  for (size_t i = 0; i < flats.size(); ++i) put_back(flats[i], summed[i]);
}

void NativeExchange::all_to_all(const at::Tensor& output, const at::Tensor& input) {
  if (input.numel() == 0) return;
  run([&] {
    at::Tensor to = byte_view(output), from = byte_view(input);
    std::vector<int64_t> equal;
    return backend_->alltoall_base(to, from, equal, equal);
  });
}

void NativeExchange::move(const at::Tensor& tensor, const std::function<WorkPtr(std::vector<at::Tensor>&)>& act) {
  if (tensor.numel() == 0) return;
  run([&] {
    std::vector<at::Tensor> tensors{byte_view(tensor)};
    return act(tensors);
  });
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
