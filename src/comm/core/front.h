#pragma once
/// \file
/// The checks of arguments that every kind of communicator makes before it communicates.

#include <ATen/core/Tensor.h>
#include <fsdp/communicator.h>

#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "comm/core/fingerprint.h"
#include "comm/core/ranks.h"

namespace fsdp {

/// Base class of communicators that checks the arguments of calls. Each `checked_` function returns the call's
/// fingerprint, or throws a UsageError with the operation, its subject, what was expected and what was found.
class Front : public Communicator {
 public:
  /// `carrier`, e.g. "Gloo", names the transport that moves tensors on the CPU and on `device`. If it is empty, tensors
  /// may be on any device.
  Front(Ranks ranks, std::string_view carrier, c10::Device device)
      : ranks_(std::move(ranks)), carrier_(carrier), device_(device) {}

  int rank() const final { return ranks_.rank; }
  int world_size() const final { return ranks_.world_size; }
  std::shared_ptr<Work> send(const at::Tensor& tensor, int peer, Tag tag) final {
    return message(checked_message(Operation::kSend, tensor, peer, tag), tensor);
  }
  std::shared_ptr<Work> recv(const at::Tensor& tensor, int peer, Tag tag) final {
    return message(checked_message(Operation::kRecv, tensor, peer, tag), tensor);
  }

 protected:
  const Ranks& ranks() const { return ranks_; }

  /// Starts the send or recv that `fingerprint` describes, on the checked `tensor`.
  virtual std::shared_ptr<Work> message(const Fingerprint& fingerprint, const at::Tensor& tensor) = 0;

  Fingerprint checked_all_gather(std::span<const GatherPlane> planes, const Tag& tag) const;
  Fingerprint checked_reduce_scatter(std::span<const ReducePlane> planes, const Tag& tag) const;
  Fingerprint checked_all_reduce(std::span<const at::Tensor> tensors, ReduceOp op, const Tag& tag) const;
  Fingerprint checked_all_to_all(const at::Tensor& output, const at::Tensor& input, const Tag& tag) const;
  Fingerprint checked_broadcast(const at::Tensor& tensor, int root, const Tag& tag) const;

 private:
  class Call;
  Fingerprint checked_message(Operation operation, const at::Tensor& tensor, int peer, const Tag& tag) const;

  const Ranks ranks_;
  const std::string_view carrier_;
  const c10::Device device_;
};

/// Makes a communicator of one rank. Its collectives are done when their call returns or, on a device, when the current
/// stream reaches them. Thread-safe.
std::shared_ptr<Communicator> make_local_communicator(Ranks ranks = {});

}  // namespace fsdp
