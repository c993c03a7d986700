#pragma once
/// \file
/// A c10d backend for the checked device, between ranks that are threads.

#include <c10/core/Stream.h>
#include <fsdp/process_group.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/checked_device/meeting_place.h"
#include "support/checked_device/operation.h"

namespace fsdp::test::checked {

/// Behaves as NCCL's does: has a stream of its own, on which a collective comes after what the caller's current stream
/// had been given; `Work::wait()` makes the caller's current stream wait, with a timeout the host too; a Work keeps its
/// tensors until it was waited for, or until the backend goes. Sums in rank order.
class CheckedBackend : public c10d::Backend {
 public:
  CheckedBackend(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout, c10::Device device);
  ~CheckedBackend() override;

  const std::string getBackendName() const override { return "checked"; }
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  c10::intrusive_ptr<c10d::Work> endCoalescing() override;

  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr send(std::vector<at::Tensor>& tensors, int to, int tag) override;
  WorkPtr recv(std::vector<at::Tensor>& tensors, int from, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

 private:
  class CheckedWork;
  struct Shelf;
  // One half of a message.
  struct Half {
    Operand operand;
    int peer;
  };

  WorkPtr launch(const std::string& name, std::vector<Operand> operands, const std::function<void()>& move_data);
  WorkPtr messages(const std::string& name, std::vector<Half> halves);
  void post(const at::Tensor& tensor, int to);
  void take(const at::Tensor& tensor, int from);

  const std::shared_ptr<MeetingPlace> place_;
  const std::chrono::milliseconds timeout_;
  const c10::Device device_;
  const c10::Stream stream_;
  const std::shared_ptr<Shelf> shelf_;
  bool is_coalescing_ = false;
  std::vector<Half> coalesced_;
};

/// For ProcessGroupOptions: rank r's tensors are on the device with its number.
DeviceBackend device_backend_of(int rank);

}  // namespace fsdp::test::checked
