// The exchange of fingerprints, beneath the communicator.

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <barrier>
#include <stdexcept>
#include <thread>
#include <vector>

#include "comm/c10d/gloo_backend.h"
#include "comm/c10d/handshake.h"

namespace fsdp::test {
namespace {

// Refuses to receive once the peers have left, as Gloo does.
class DesertedBackend : public c10d::Backend {
 public:
  explicit DesertedBackend(c10::intrusive_ptr<c10d::Backend> inner)
      : c10d::Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {}
  ~DesertedBackend() override = default;

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int peer, int tag) override {
    return inner_->send(tensors, peer, tag);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int peer, int tag) override {
    if (peers_have_left) throw std::runtime_error("Connection closed by peer");
    return inner_->recv(tensors, peer, tag);
  }
  bool peers_have_left = false;

 private:
  const c10::intrusive_ptr<c10d::Backend> inner_;
};

TEST(AHandshake, IsCompleteThoughAPeerLeftOnceItsFingerprintWasHere) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::barrier done(2);
  const auto run_rank = [&](int rank) {
    const auto backend =
        c10::make_intrusive<DesertedBackend>(make_gloo_backend(store, rank, 2, std::chrono::seconds(60), "127.0.0.1"));
    const auto transport = std::make_shared<Wire::Transport>();
    transport->backend = backend;
    Handshake handshake(std::make_shared<Wire>(transport, std::chrono::seconds(60)), rank, {1 - rank});
    const auto meet = [&] { return handshake.exchange(make_fingerprint(Operation::kBarrier, {}), {}).peer; };
    EXPECT_EQ(meet(), -1);
    backend->peers_have_left = true;
    int differs = 1 - rank;
    EXPECT_NO_THROW(differs = meet());
    EXPECT_EQ(differs, -1);
    EXPECT_THROW(meet(), std::runtime_error);
    done.arrive_and_wait();
  };
  std::thread other([&] { run_rank(1); });
  run_rank(0);
  other.join();
}

}  // namespace
}  // namespace fsdp::test
