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
#include "support/checked_device/hang.h"
#include "support/checked_device/meeting_place.h"
#include "support/checked_device/operation.h"
#include "support/checked_device/timeline.h"

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

// Throws an error unless NCCL's backend accepts the dtype.
void require_known(at::ScalarType dtype) {
  constexpr at::ScalarType kKnown[]{at::kByte, at::kChar,  at::kBool,   at::kInt,     at::kLong,
                                    at::kHalf, at::kFloat, at::kDouble, at::kBFloat16};
  TORCH_CHECK(std::ranges::find(kKnown, dtype) != std::end(kKnown), "the backend does not know the dtype ", dtype);
}

// Keeps the tensors of each Work that was destroyed without a wait. The destructor waits for those works.
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

struct Destiny {
  std::mutex mutex;
  Fate fate = Fate::kRuns;
  int launches = 0;  // number of collectives that still run before `fate` applies

  Fate next() {
    std::lock_guard lock(mutex);
    if (fate == Fate::kRuns || launches-- > 0) return Fate::kRuns;
    launches = 0;
    return fate;
  }
};

Destiny& destiny_of(c10::Device device) {
  static std::array<Destiny, kDevices> destinies;
  return destinies[static_cast<size_t>(device.index())];
}

class CheckedBackend : public c10d::Backend {
 public:
  CheckedBackend(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout, c10::Device device)
      : Backend(rank, size),
        place_(MeetingPlace::enter(store, rank, device, timeout)),
        timeout_(timeout),
        device_(device),
        stream_(c10::impl::VirtualGuardImpl(kType).getNewStream(device)) {}

  ~CheckedBackend() override { end_hangs(); }

  const std::string getBackendName() const override { return "checked"; }
  void abort() override { end_hangs(); }
  c10d::ErrorType getError() override {
    std::lock_guard lock(mutex_);
    return has_failed_ ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
  }
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override { is_coalescing_ = true; }
  WorkPtr endCoalescing() override {
    is_coalescing_ = false;
    auto parts = std::exchange(coalesced_, {});
    std::vector<Operand> operands;
    for (auto& part : parts) operands.insert(operands.end(), part.operands.begin(), part.operands.end());
    return launch("several collectives", std::move(operands), [&](const std::string&) {
      for (const auto& part : parts) part.move_data(part.name);
    });
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) override {
    return launch("all-gather", {{input, false}, {output, true}}, [=, this](const std::string& what) {
      for (int rank = 0; rank < size_; ++rank) post(what, input, rank);
      for (int rank = 0; rank < size_; ++rank) take(what, output.narrow(0, rank * input.numel(), input.numel()), rank);
    });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    return launch("reduce-scatter", {{input, false}, {output, true}}, [=, this](const std::string& what) {
      for (int rank = 0; rank < size_; ++rank) post(what, input.narrow(0, rank * output.numel(), output.numel()), rank);
      take_reduced(what, output, options.reduceOp);
    });
  }
  WorkPtr allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    return launch("all-reduce", {{tensors[0], true}}, [=, this, tensor = tensors[0]](const std::string& what) {
      for (int rank = 0; rank < size_; ++rank) post(what, tensor, rank);
      take_reduced(what, tensor, options.reduceOp);
    });
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>&, std::vector<int64_t>&,
                        const c10d::AllToAllOptions&) override {
    const int64_t numel = input.numel() / size_;
    return launch("all-to-all", {{input, false}, {output, true}}, [=, this](const std::string& what) {
      for (int rank = 0; rank < size_; ++rank) post(what, input.narrow(0, rank * numel, numel), rank);
      for (int rank = 0; rank < size_; ++rank) take(what, output.narrow(0, rank * numel, numel), rank);
    });
  }
  WorkPtr broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    const int root = static_cast<int>(options.rootRank);
    return launch("broadcast", {{tensors[0], rank_ != root}}, [=, this, tensor = tensors[0]](const std::string& what) {
      if (rank_ != root) return take(what, tensor, root);
      for (int rank = 0; rank < size_; ++rank)
        if (rank != root) post(what, tensor, rank);
    });
  }
  WorkPtr send(std::vector<at::Tensor>& tensors, int to, int) override {
    return launch("send", {{tensors[0], false}},
                  [=, this, tensor = tensors[0]](const std::string&) { post(kMessage, tensor, to); });
  }
  WorkPtr recv(std::vector<at::Tensor>& tensors, int from, int) override {
    return launch("recv", {{tensors[0], true}},
                  [=, this, tensor = tensors[0]](const std::string&) { take(kMessage, tensor, from); });
  }
  WorkPtr barrier(const c10d::BarrierOptions&) override {
    return launch("barrier", {}, [this](const std::string& what) {
      for (int rank = 0; rank < size_; ++rank) place_->post(rank_, rank, {what, {}});
      for (int rank = 0; rank < size_; ++rank) place_->take(rank, rank_, what, timeout_);
    });
  }

 private:
  using MoveData = std::function<void(const std::string& what)>;
  // One collective of those that the backend launches together.
  struct Part {
    std::string name;
    std::vector<Operand> operands;
    MoveData move_data;
  };

  WorkPtr launch(const std::string& name, std::vector<Operand> operands, const MoveData& move_data) {
    for (const auto& operand : operands) require_known(operand.tensor.scalar_type());
    if (is_coalescing_) {
      coalesced_.push_back({name, std::move(operands), move_data});
      return nullptr;
    }
    {
      std::lock_guard lock(mutex_);
      TORCH_CHECK(!is_aborted_, "the backend was aborted");
    }
    ++launches_of(device_);
    const c10::DeviceGuard guard(device_);
    c10::Event given(kType), finished(kType);
    given.record(current_stream(device_));
    given.block(stream_);
    note_operation(name, stream_, operands);
    run(name, move_data);
    finished.record(stream_);
    std::vector<at::Tensor> tensors;
    for (auto& operand : operands) tensors.push_back(std::move(operand.tensor));
    return c10::make_intrusive<CheckedWork>(device_, std::move(finished), std::move(tensors), shelf_);
  }
  // Moves data only if the device runs the collective. A collective after one that hangs does not run either.
  void run(const std::string& name, const MoveData& move_data) {
    const Fate fate = destiny_of(device_).next();
    if (fate == Fate::kRuns && is_stream_free()) {
      try {
        return move_data(name);
      } catch (const NeverComes&) {
      }
    }
    place_->leave(rank_);
    const auto hang = std::make_shared<Hang>();
    {
      std::lock_guard lock(device_mutex());
      Timeline::get().add(stream_, hang);
    }
    std::lock_guard lock(mutex_);
    has_failed_ = has_failed_ || fate == Fate::kFails;
    hangs_.push_back(hang);
    if (is_aborted_) hang->end();
  }
  bool is_stream_free() const {
    std::lock_guard lock(device_mutex());
    return Timeline::get().of(stream_).is_over();
  }
  void end_hangs() {
    place_->leave(rank_);
    std::lock_guard lock(mutex_);
    is_aborted_ = true;
    for (const auto& hang : hangs_) hang->end();
  }
  void post(const std::string& what, const at::Tensor& tensor, int to) {
    Bytes bytes(tensor.nbytes());
    if (!bytes.empty()) std::memcpy(bytes.data(), tensor.const_data_ptr(), bytes.size());
    place_->post(rank_, to, {described(what, tensor.nbytes()), std::move(bytes)});
  }
  void take(const std::string& what, const at::Tensor& tensor, int from) {
    const Bytes bytes = take_bytes(what, tensor, from);
    TORCH_CHECK(bytes.size() == tensor.nbytes(), "expected ", tensor.nbytes(), " bytes from rank ", from, ", found ",
                bytes.size());
    if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  }
  Bytes take_bytes(const std::string& what, const at::Tensor& tensor, int from) {
    return place_->take(from, rank_, described(what, tensor.nbytes()), timeout_);
  }
  void take_reduced(const std::string& what, const at::Tensor& tensor, const c10d::ReduceOp& op) {
    take(what, tensor, 0);
    for (int rank = 1; rank < size_; ++rank) {
      Bytes bytes = take_bytes(what, tensor, rank);
      combine(cpu_alias(tensor), as_cpu(bytes, tensor), op);
    }
  }
  static std::string described(const std::string& what, size_t bytes) {
    return what == kMessage ? what : c10::str(what, " of ", bytes, " bytes");
  }

  const std::shared_ptr<MeetingPlace> place_;
  const std::chrono::milliseconds timeout_;
  const c10::Device device_;
  const c10::Stream stream_;
  const std::shared_ptr<Shelf> shelf_ = std::make_shared<Shelf>();
  bool is_coalescing_ = false;
  std::vector<Part> coalesced_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Hang>> hangs_;
  bool is_aborted_ = false, has_failed_ = false;
};

}  // namespace

void set_fate(c10::Device device, Fate fate, int launches) {
  auto& destiny = destiny_of(device);
  std::lock_guard lock(destiny.mutex);
  destiny.fate = fate;
  destiny.launches = launches;
}

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
