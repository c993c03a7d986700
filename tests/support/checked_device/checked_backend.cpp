#include "support/checked_device/checked_backend.h"

#include <ATen/ops/add.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <iterator>
#include <mutex>
#include <utility>

#include "support/checked_device/cpu_aliases.h"
#include "support/checked_device/device_guard.h"
#include "support/checked_device/meeting_place.h"
#include "support/checked_device/operation.h"

namespace fsdp::test::checked {
namespace {

c10::Stream current_stream(c10::Device device) { return c10::impl::VirtualGuardImpl(kType).getStream(device); }

at::Tensor as_cpu(Bytes& bytes, const at::Tensor& model) {
  return at::from_blob(bytes.data(), model.sizes(), model.options().device(at::kCPU));
}

void combine(const at::Tensor& total, const at::Tensor& other, const c10d::ReduceOp& op) {
  at::Tensor out = total;
  if (op == c10d::ReduceOp::MAX)
    at::maximum_out(out, total, other);
  else if (op == c10d::ReduceOp::MIN)
    at::minimum_out(out, total, other);
  else
    at::add_out(out, total, other);
}

// Accepts the dtypes that NCCL's backend does.
void require_known(at::ScalarType dtype) {
  constexpr at::ScalarType kKnown[]{at::kByte, at::kChar,  at::kBool,   at::kInt,     at::kLong,
                                    at::kHalf, at::kFloat, at::kDouble, at::kBFloat16};
  TORCH_CHECK(std::ranges::find(kKnown, dtype) != std::end(kKnown), "the backend does not know the dtype ", dtype);
}

// Keeps the tensors of each Work that nobody waited for.
struct Shelf {
  std::mutex mutex;
  std::vector<std::pair<c10::Event, std::vector<at::Tensor>>> works;

  ~Shelf() {
    for (const auto& [finished, tensors] : works) finished.synchronize();
  }
};

class CheckedWork : public c10d::Work {
 public:
  CheckedWork(c10::Device device, c10::Event finished, std::vector<at::Tensor> tensors, std::shared_ptr<Shelf> shelf)
      : device_(device), finished_(std::move(finished)), tensors_(std::move(tensors)), shelf_(std::move(shelf)) {}
  ~CheckedWork() override {
    if (tensors_.empty()) return;
    std::lock_guard lock(shelf_->mutex);
    shelf_->works.emplace_back(std::move(finished_), std::move(tensors_));
  }

  bool isCompleted() override { return finished_.query(); }
  bool isSuccess() const override { return true; }
  void synchronize() override {
    finished_.block(current_stream(device_));
    tensors_.clear();
  }
  bool wait(std::chrono::milliseconds timeout) override {
    synchronize();
    if (timeout != kNoTimeout) finished_.synchronize();
    return true;
  }

 private:
  const c10::Device device_;
  c10::Event finished_;
  std::vector<at::Tensor> tensors_;
  const std::shared_ptr<Shelf> shelf_;
};

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

std::atomic<int>& launches_of(c10::Device device) {
  static std::array<std::atomic<int>, kDevices> launches;
  return launches[static_cast<size_t>(device.index())];
}

class CheckedBackend : public c10d::Backend {
 public:
  CheckedBackend(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout, c10::Device device)
      : Backend(rank, size),
        place_(MeetingPlace::enter(store, rank, timeout)),
        timeout_(timeout),
        device_(device),
        stream_(c10::impl::VirtualGuardImpl(kType).getNewStream(device)) {}

  const std::string getBackendName() const override { return "checked"; }
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override { is_coalescing_ = true; }
  WorkPtr endCoalescing() override {
    is_coalescing_ = false;
    auto parts = std::exchange(coalesced_, {});
    std::vector<Operand> operands;
    for (auto& part : parts) operands.insert(operands.end(), part.operands.begin(), part.operands.end());
    return launch("several collectives", std::move(operands), [&] {
      for (const auto& part : parts) part.move_data();
    });
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) override {
    return launch("all-gather", {{input, false}, {output, true}}, [=, this] {
      for (int rank = 0; rank < size_; ++rank) post(input, rank);
      for (int rank = 0; rank < size_; ++rank) take(output.narrow(0, rank * input.numel(), input.numel()), rank);
    });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    return launch("reduce-scatter", {{input, false}, {output, true}}, [=, this] {
      for (int rank = 0; rank < size_; ++rank) post(input.narrow(0, rank * output.numel(), output.numel()), rank);
      take_reduced(output, options.reduceOp);
    });
  }
  WorkPtr allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    return launch("all-reduce", {{tensors[0], true}}, [=, this, tensor = tensors[0]] {
      for (int rank = 0; rank < size_; ++rank) post(tensor, rank);
      take_reduced(tensor, options.reduceOp);
    });
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>&, std::vector<int64_t>&,
                        const c10d::AllToAllOptions&) override {
    const int64_t numel = input.numel() / size_;
    return launch("all-to-all", {{input, false}, {output, true}}, [=, this] {
      for (int rank = 0; rank < size_; ++rank) post(input.narrow(0, rank * numel, numel), rank);
      for (int rank = 0; rank < size_; ++rank) take(output.narrow(0, rank * numel, numel), rank);
    });
  }
  WorkPtr broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    const int root = static_cast<int>(options.rootRank);
    return launch("broadcast", {{tensors[0], rank_ != root}}, [=, this, tensor = tensors[0]] {
      if (rank_ != root) return take(tensor, root);
      for (int rank = 0; rank < size_; ++rank)
        if (rank != root) post(tensor, rank);
    });
  }
  WorkPtr send(std::vector<at::Tensor>& tensors, int to, int) override {
    return launch("send", {{tensors[0], false}}, [=, this, tensor = tensors[0]] { post(tensor, to); });
  }
  WorkPtr recv(std::vector<at::Tensor>& tensors, int from, int) override {
    return launch("recv", {{tensors[0], true}}, [=, this, tensor = tensors[0]] { take(tensor, from); });
  }
  WorkPtr barrier(const c10d::BarrierOptions&) override {
    return launch("barrier", {}, [this] {
      for (int rank = 0; rank < size_; ++rank) place_->post(rank_, rank, {});
      for (int rank = 0; rank < size_; ++rank) place_->take(rank, rank_, timeout_);
    });
  }

 private:
  // Of what is to be launched as one.
  struct Part {
    std::vector<Operand> operands;
    std::function<void()> move_data;
  };

  WorkPtr launch(const std::string& name, std::vector<Operand> operands, const std::function<void()>& move_data) {
    for (const auto& operand : operands) require_known(operand.tensor.scalar_type());
    if (is_coalescing_) {
      coalesced_.push_back({std::move(operands), move_data});
      return nullptr;
    }
    ++launches_of(device_);
    const c10::DeviceGuard guard(device_);
    c10::Event given(kType), finished(kType);
    given.record(current_stream(device_));
    given.block(stream_);
    note_operation(name, stream_, operands);
    move_data();
    finished.record(stream_);
    std::vector<at::Tensor> tensors;
    for (auto& operand : operands) tensors.push_back(std::move(operand.tensor));
    return c10::make_intrusive<CheckedWork>(device_, std::move(finished), std::move(tensors), shelf_);
  }
  void post(const at::Tensor& tensor, int to) {
    Bytes bytes(tensor.nbytes());
    if (!bytes.empty()) std::memcpy(bytes.data(), tensor.const_data_ptr(), bytes.size());
    place_->post(rank_, to, std::move(bytes));
  }
  void take(const at::Tensor& tensor, int from) {
    const Bytes bytes = place_->take(from, rank_, timeout_);
    TORCH_CHECK(bytes.size() == tensor.nbytes(), "expected ", tensor.nbytes(), " bytes from rank ", from, ", found ",
                bytes.size());
    if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  }
  void take_reduced(const at::Tensor& tensor, const c10d::ReduceOp& op) {
    take(tensor, 0);
    for (int rank = 1; rank < size_; ++rank) {
      Bytes bytes = place_->take(rank, rank_, timeout_);
      combine(cpu_alias(tensor), as_cpu(bytes, tensor), op);
    }
  }

  const std::shared_ptr<MeetingPlace> place_;
  const std::chrono::milliseconds timeout_;
  const c10::Device device_;
  const c10::Stream stream_;
  const std::shared_ptr<Shelf> shelf_ = std::make_shared<Shelf>();
  bool is_coalescing_ = false;
  std::vector<Part> coalesced_;
};

}  // namespace

int launches_on(c10::Device device) { return launches_of(device); }

c10::intrusive_ptr<c10d::Backend> make_checked_backend(c10d::Store& store, int rank, int size,
                                                       std::chrono::milliseconds timeout, c10::Device device) {
  return c10::make_intrusive<CheckedBackend>(store, rank, size, timeout, device);
}

DeviceBackend device_backend_of(int rank) {
  const c10::Device device(kType, static_cast<c10::DeviceIndex>(rank));
  return {device, [device](const auto& store, int own, int size, std::chrono::milliseconds timeout) {
            return make_checked_backend(*store, own, size, timeout, device);
          }};
}

}  // namespace fsdp::test::checked
