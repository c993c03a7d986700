#include "comm/c10d/exchange.h"

#include <ATen/ops/view_as_real.h>

#include "comm/core/check.h"

#include <algorithm>
#include <array>

namespace fsdp {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

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

class NativeExchange : public Exchange {
 public:
  explicit NativeExchange(c10::intrusive_ptr<c10d::Backend> backend) : backend_(std::move(backend)) {}

  void all_gather(GatherPlanes planes) override {
    std::vector<Operands> all;
    for (const auto& [output, input] : planes) all.push_back({byte_view(output), byte_view(input)});
    run(all, [&](Operands& plane) { return backend_->_allgather_base(plane.whole, plane.own); });
  }

  void reduce_scatter(ReducePlanes planes) override {
    std::vector<Operands> all;
    for (const auto& [output, input] : planes) all.push_back({summable(input.front().values), summable(output)});
    run(all, [&](Operands& plane) { return backend_->_reduce_scatter_base(plane.own, plane.whole); });
    for (size_t i = 0; i < planes.size(); ++i) put_back(planes[i].output, all[i].own);
  }

  void all_reduce(std::span<const at::Tensor> flats, ReduceOp op) override {
    c10d::AllreduceOptions options;
    if (op == ReduceOp::kMax) options.reduceOp = c10d::ReduceOp::MAX;
    if (op == ReduceOp::kMin) options.reduceOp = c10d::ReduceOp::MIN;
    std::vector<Operands> all;
    for (const auto& flat : flats) all.push_back({{}, summable(flat)});
    run(all, [&](Operands& flat) {
      std::vector<at::Tensor> tensors{flat.own};
      return backend_->allreduce(tensors, options);
    });
    for (size_t i = 0; i < flats.size(); ++i) put_back(flats[i], all[i].own);
  }

  void all_to_all(const at::Tensor& output, const at::Tensor& input) override {
    run({{byte_view(output), byte_view(input)}}, [&](Operands& flat) {
      std::vector<int64_t> equal;
      return backend_->alltoall_base(flat.whole, flat.own, equal, equal);
    });
  }

  void broadcast(const at::Tensor& tensor, int root) override {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    move(tensor, [&](auto& tensors) { return backend_->broadcast(tensors, options); });
  }
  void send(const at::Tensor& tensor, int peer) override {
    move(tensor, [&](auto& tensors) { return backend_->send(tensors, peer, 0); });
  }
  void recv(const at::Tensor& tensor, int peer) override {
    move(tensor, [&](auto& tensors) { return backend_->recv(tensors, peer, 0); });
  }

 private:
  // The tensors of one collective. `whole` contains all ranks' data, if such a tensor takes part.
  struct Operands {
    at::Tensor whole, own;
  };

  // Calls `begin`, which begins a collective, for all operands that are not empty, and issues the collectives as one if
  // the backend supports it. The current stream waits for them.
  void run(std::vector<Operands> all, const std::function<WorkPtr(Operands&)>& begin) {
    std::erase_if(all, [](const Operands& operands) { return operands.own.numel() == 0; });
    // wait() gets no timeout, because with one the host would wait too.
    if (all.size() <= 1 || !backend_->supportsCoalescing()) {
      for (auto& operands : all) begin(operands)->wait();
      return;
    }
    backend_->startCoalescing();
    FirstError of_begin, of_end;
    of_begin.run([&] {
      for (auto& operands : all) begin(operands);
    });
    // endCoalescing() is called even after an error, because the group of launches would otherwise stay open for this
    // thread's next collective.
    of_end.run([&] {
      if (const auto work = backend_->endCoalescing()) work->wait();
    });
    of_begin.rethrow();
    of_end.rethrow();
  }

  // Runs `begin`, which begins a broadcast or a message, on the bytes of `tensor`.
  void move(const at::Tensor& tensor, const std::function<WorkPtr(std::vector<at::Tensor>&)>& begin) {
    run({{{}, byte_view(tensor)}}, [&](Operands& operands) {
      std::vector<at::Tensor> tensors{operands.own};
      return begin(tensors);
    });
  }

  const c10::intrusive_ptr<c10d::Backend> backend_;
};

}  // namespace

std::unique_ptr<Exchange> make_native_exchange(c10::intrusive_ptr<c10d::Backend> backend) {
  return std::make_unique<NativeExchange>(std::move(backend));
}

}  // namespace fsdp
