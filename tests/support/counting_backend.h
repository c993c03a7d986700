#pragma once
/// \file
/// A c10d backend that counts the messages that it sends.

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

namespace fsdp::test {

/// Passes send() and recv() on to another backend, and supports no other operation. Several backends may share one
/// `Counts`.
class CountingBackend : public c10d::Backend {
 public:
  struct Counts {
    std::atomic<int> sends = 0;
  };

  CountingBackend(c10::intrusive_ptr<c10d::Backend> inner, std::shared_ptr<Counts> counts)
      : c10d::Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)), counts_(std::move(counts)) {}
  ~CountingBackend() override = default;

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int peer, int tag) override {
    ++counts_->sends;
    return inner_->send(tensors, peer, tag);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int peer, int tag) override {
    return inner_->recv(tensors, peer, tag);
  }

 private:
  const c10::intrusive_ptr<c10d::Backend> inner_;
  const std::shared_ptr<Counts> counts_;
};

}  // namespace fsdp::test
