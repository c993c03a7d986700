// The communicator over c10d: its handshake, the number of messages for small data, and a backend's native collectives,
// with Gloo in NCCL's place.

#include "comm/c10d/c10d_communicator.h"

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <array>
#include <barrier>
#include <stdexcept>

#include "comm/c10d/gloo_backend.h"
#include "comm/c10d/handshake.h"
#include "comm/frame.h"
#include "support/collective_cases.h"
#include "support/counting_backend.h"

namespace fsdp::test {
namespace {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using CountsPtr = std::shared_ptr<CountingBackend::Counts>;

constexpr std::chrono::seconds kPatience{60};

BackendPtr gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
                std::chrono::milliseconds timeout) {
  return make_gloo_backend(store, rank, world_size, timeout, "127.0.0.1");
}

BackendFactory counting(const CountsPtr& counts) {
  return [counts](const auto& store, int rank, int world_size, auto timeout) {
    return c10::make_intrusive<CountingBackend>(gloo(store, rank, world_size, timeout), counts);
  };
}

// Runs `fn` on every rank; no rank leaves before all are done.
void run_c10d(int world_size, C10dOptions options, const std::function<void(Communicator& ranks)>& fn) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  options.timeout = kPatience;
  run_threads(world_size, [&](int rank) {
    auto own = options;
    own.ranks = {rank, world_size};
    const auto ranks = make_c10d_communicator(store, std::move(own));
    fn(*ranks);
    ranks->barrier({})->wait();
  });
}

// This backend refuses to receive once the peers have left, as Gloo does.
class DesertedBackend : public CountingBackend {
 public:
  explicit DesertedBackend(BackendPtr inner) : CountingBackend(std::move(inner), std::make_shared<Counts>()) {}
  ~DesertedBackend() override = default;

  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int peer, int tag) override {
    if (peers_have_left) throw std::runtime_error("Connection closed by peer");
    return CountingBackend::recv(tensors, peer, tag);
  }
  bool peers_have_left = false;
};

TEST(AHandshake, IsCompleteThoughAPeerLeftOnceItsFingerprintWasHere) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::barrier done(2);
  run_threads(2, [&](int rank) {
    const auto backend = c10::make_intrusive<DesertedBackend>(gloo(store, rank, 2, kPatience));
    const auto transport = std::make_shared<Wire::Transport>();
    transport->backend = backend;
    Handshake handshake(std::make_shared<Wire>(transport, kPatience), rank, {1 - rank});
    const auto meet = [&] { return handshake.exchange(make_fingerprint(Operation::kBarrier, {})).peer; };
    EXPECT_EQ(meet(), -1);
    backend->peers_have_left = true;
    int differs = 1 - rank;
    EXPECT_NO_THROW(differs = meet());
    EXPECT_EQ(differs, -1);
    EXPECT_THROW(meet(), std::runtime_error);
    done.arrive_and_wait();
  });
}

// Up to 256 bytes from one rank to another travel with the fingerprint.
TEST(ASmallCollective, TakesOneMessageToEachPeer) {
  constexpr int kWorld = 3;
  struct Row {
    const char* what;
    std::function<std::shared_ptr<Work>(Communicator& ranks, int64_t numel)> begin;
    std::array<int, kWorld> enclosed, beside;  // messages by rank, for 64 and for 65 floats per peer
  };
  const std::vector<Row> rows{
      {"all_gather",
       [](Communicator& ranks, int64_t numel) {
         return ranks.all_gather(at::empty({3 * numel}), at::ones({numel}), {"w"});
       },
       {2, 2, 2},
       {4, 4, 4}},
      {"reduce_scatter",
       [](Communicator& ranks, int64_t numel) {
         return ranks.reduce_scatter(at::empty({numel}), at::ones({3 * numel}), {"w"});
       },
       {2, 2, 2},
       {4, 4, 4}},
      {"reduce_scatter of two planes",
       [](Communicator& ranks, int64_t numel) {
         return ranks.reduce_scatter({ReducePlane{at::empty({numel - 4}), {{0, at::ones({3 * (numel - 4)})}}},
                                      ReducePlane{at::empty({4}), {{0, at::ones({12})}}}},
                                     1.0, {"w"});
       },
       {2, 2, 2},
       {6, 6, 6}},
      {"all_to_all",
       [](Communicator& ranks, int64_t numel) {
         return ranks.all_to_all(at::empty({3 * numel}), at::ones({3 * numel}), {"w"});
       },
       {2, 2, 2},
       {4, 4, 4}},
      {"all_reduce",
       [](Communicator& ranks, int64_t numel) {
         return ranks.all_reduce(at::ones({numel}), ReduceOp::kSum, {"w", {}});
       },
       {2, 2, 2},
       {6, 6, 6}},
      {"broadcast",
       [](Communicator& ranks, int64_t numel) { return ranks.broadcast(at::ones({numel}), 0, {"w", {}}); },
       {2, 2, 2},
       {4, 2, 2}},
      // Each rank sends a fingerprint to each neighbour, and the data to the next one.
      {"a ring of messages",
       [](Communicator& ranks, int64_t numel) {
         const int next = (ranks.rank() + 1) % kWorld, previous = (ranks.rank() + 2) % kWorld;
         return ranks.send_recv(at::ones({numel}), next, at::empty({numel}), previous, {"w", {}});
       },
       {2, 2, 2},
       {3, 3, 3}}};
  std::array<CountsPtr, kWorld> counts;
  for (auto& its : counts) its = std::make_shared<CountingBackend::Counts>();
  C10dOptions options;
  options.control = [&](const auto& store, int rank, int world_size, auto timeout) {
    return counting(counts[static_cast<size_t>(rank)])(store, rank, world_size, timeout);
  };
  run_c10d(kWorld, options, [&](Communicator& ranks) {
    const auto own = static_cast<size_t>(ranks.rank());
    for (const auto& row : rows) {
      for (const int64_t numel : {64, 65}) {
        ranks.barrier({})->wait();
        const int before = counts[own]->sends;
        row.begin(ranks, numel)->wait();
        EXPECT_EQ(counts[own]->sends - before, (numel == 64 ? row.enclosed : row.beside)[own]) << row.what;
      }
    }
  });
}

TEST(DeviceBackend, OfTheCallersCarriesItsDevicesData) {
  const auto made = std::make_shared<CountingBackend::Counts>();
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_threads(2, [&](int rank) {
    const auto group = new_process_group(
        {.device_backend = DeviceBackend{c10::kCPU, counting(made)}, .rank = rank, .world_size = 2, .store = store});
    const at::Tensor own = at::full({3}, static_cast<float>(rank)), whole = at::zeros({6});
    group->communicator().all_gather(whole, own, {"gather"})->wait();
    EXPECT_EQ(whole[4].item<float>(), 1);
    group->communicator().barrier({})->wait();
  });
  EXPECT_EQ(made->gathers, 2);
  EXPECT_EQ(made->sends, 0);
}

TEST(NativeCollectives, GiveTheResultsOfMessages) {
  C10dOptions native;
  native.control = native.data = gloo;
  for (const int world_size : {2, 3})
    run_c10d(world_size, native, [](Communicator& ranks) { check_collectives(ranks); });
}

struct BackendWithoutCollectives : c10d::Backend {
  using c10d::Backend::Backend;
  ~BackendWithoutCollectives() override = default;
};

TEST(DataDevice, HasTheDataOfTheCpuGoByMessagesAndRefusesOtherTensors) {
  C10dOptions options;
  options.control = gloo;
  options.data = [](const auto&, int rank, int world_size, auto) {
    return c10::make_intrusive<BackendWithoutCollectives>(rank, world_size);
  };
  options.data_device = c10::Device(c10::kCUDA, 0);
  run_c10d(2, options, [](Communicator& ranks) {
    const at::Tensor tensor = at::full({6}, ranks.rank() + 1.0);
    sum_up(ranks, tensor);
    EXPECT_TRUE(tensor.equal(at::full({6}, 3.0)));
    expect_error([&] { ranks.broadcast(at::empty({6}, at::kMeta), 0, {"far", {}})->wait(); },
                 {"this rank's tensors are on cuda:0 or the CPU, found one on meta"});
  });
}

}  // namespace
}  // namespace fsdp::test
