#pragma once
/// \file
/// Base classes for communicators that wrap another communicator.

#include <fsdp/communicator.h>

#include "comm/core/fingerprint.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace fsdp {

/// Passes every call on to `inner`. First it calls `before`, which sees the call and may change its tag.
class Decorator : public Communicator {
 public:
  Decorator(std::shared_ptr<Communicator> inner, std::string lane) : inner_(std::move(inner)), lane_(std::move(lane)) {}

  int rank() const override { return inner_->rank(); }
  int world_size() const override { return inner_->world_size(); }

  std::shared_ptr<Work> all_gather(std::vector<GatherPlane> planes, Tag tag) override {
    uint64_t bytes = 0;
    for (const auto& plane : planes) bytes += plane.output.nbytes();
    before(Operation::kAllGather, bytes, tag);
    return inner_->all_gather(std::move(planes), std::move(tag));
  }
  std::shared_ptr<Work> reduce_scatter(std::vector<ReducePlane> planes, double scale, Tag tag) override {
    uint64_t bytes = 0;
    for (const auto& plane : planes) bytes += plane.output.nbytes() * static_cast<uint64_t>(world_size());
    before(Operation::kReduceScatter, bytes, tag);
    return inner_->reduce_scatter(std::move(planes), scale, std::move(tag));
  }
  std::shared_ptr<Work> all_reduce(std::vector<at::Tensor> tensors, ReduceOp op, Tag tag) override {
    uint64_t bytes = 0;
    for (const auto& tensor : tensors) bytes += tensor.nbytes();
    before(all_reduce_operation(op), bytes, tag);
    return inner_->all_reduce(std::move(tensors), op, std::move(tag));
  }
  std::shared_ptr<Work> all_to_all(const at::Tensor& output, const at::Tensor& input, Tag tag) override {
    before(Operation::kAllToAll, input.nbytes(), tag);
    return inner_->all_to_all(output, input, std::move(tag));
  }
  std::shared_ptr<Work> broadcast(const at::Tensor& tensor, int root, Tag tag) override {
    before(Operation::kBroadcast, tensor.nbytes(), tag);
    return inner_->broadcast(tensor, root, std::move(tag));
  }
  std::shared_ptr<Work> send(const at::Tensor& tensor, int peer, Tag tag) override {
    before(Operation::kSend, tensor.nbytes(), tag);
    return inner_->send(tensor, peer, std::move(tag));
  }
  std::shared_ptr<Work> recv(const at::Tensor& tensor, int peer, Tag tag) override {
    before(Operation::kRecv, tensor.nbytes(), tag);
    return inner_->recv(tensor, peer, std::move(tag));
  }
  std::shared_ptr<Work> barrier(Tag tag) override {
    before(Operation::kBarrier, 0, tag);
    return inner_->barrier(std::move(tag));
  }
  std::shared_ptr<Communicator> duplicate(const std::string& name) override {
    Tag tag{name, {}};
    before(Operation::kDuplicate, 0, tag);
    return decorate(inner_->duplicate(name), name);
  }
  std::vector<std::shared_ptr<SharedBuffer>> share(std::span<const SharedPart> parts, c10::Device device) override {
    return inner_->share(parts, device);
  }
  std::vector<std::shared_ptr<HostBuffer>> share_on_host(std::span<const SharedPart> parts,
                                                         c10::Device device) override {
    return inner_->share_on_host(parts, device);
  }
  void start_over() override { inner_->start_over(); }
  void fail(const std::string& operation, const std::string& error, std::optional<int> lost) override {
    inner_->fail(operation, error, lost);
  }
  void progress() override { inner_->progress(); }

 protected:
  virtual void before(Operation operation, uint64_t bytes, Tag& tag) = 0;
  virtual std::shared_ptr<Communicator> decorate(std::shared_ptr<Communicator> duplicate, const std::string& name) = 0;
  const std::string& lane() const { return lane_; }

 private:
  const std::shared_ptr<Communicator> inner_;
  const std::string lane_;
};

/// Calls a function before each call of this communicator and of its duplicates. The function gets the name of the
/// lane: "main", or the name that was given to duplicate().
class Watched : public Decorator {
 public:
  using Watch = std::function<void(const std::string& lane, Operation operation, uint64_t bytes, Tag& tag)>;

  Watched(std::shared_ptr<Communicator> inner, Watch watch, std::string lane = "main")
      : Decorator(std::move(inner), std::move(lane)), watch_(std::move(watch)) {}

 private:
  void before(Operation operation, uint64_t bytes, Tag& tag) override { watch_(lane(), operation, bytes, tag); }
  std::shared_ptr<Communicator> decorate(std::shared_ptr<Communicator> duplicate, const std::string& name) override {
    return std::make_shared<Watched>(std::move(duplicate), watch_, name);
  }

  const Watch watch_;
};

}  // namespace fsdp
