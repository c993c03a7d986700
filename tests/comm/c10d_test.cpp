// Tests of the communicator over c10d: its headers, the number of messages of each collective, and its connections.

#include "comm/c10d/c10d_communicator.h"

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <array>
#include <barrier>
#include <filesystem>
#include <stdexcept>
#include <string_view>

#include "comm/c10d/backends.h"
#include "comm/c10d/mail.h"
#include "comm/frame.h"
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

// Runs `fn` on every rank. No rank leaves before all ranks are done.
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

// A backend that refuses to receive once its peers have left, as Gloo does.
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

TEST(Mail, IsCompleteThoughAPeerLeftOnceItsHeaderWasHere) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::barrier done(2);
  run_threads(2, [&](int rank) {
    const auto backend = c10::make_intrusive<DesertedBackend>(gloo(store, rank, 2, kPatience));
    const std::shared_ptr<Transport> transport(new Transport{backend});
    Mail mail(transport, {.rank = rank, .peers = {1 - rank}, .timeout = kPatience});
    const auto meet = [&] {
      mail.begin(make_fingerprint(Operation::kBarrier, {}));
      mail.meet();
      mail.finish();
      mail.prepare();
    };
    EXPECT_NO_THROW(meet());
    backend->peers_have_left = true;
    // The receives of these two headers were posted before the peer left.
    EXPECT_NO_THROW(meet());
    EXPECT_NO_THROW(meet());
    EXPECT_THROW(meet(), std::runtime_error);
    done.arrive_and_wait();
  });
}

// Runs `fn` on two ranks with two queues that share a connection.
void run_mails(const std::function<void(int rank, Mail& first, Mail& second)>& fn) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::barrier done(2);
  run_threads(2, [&](int rank) {
    const std::shared_ptr<Transport> transport(new Transport{gloo(store, rank, 2, kPatience)});
    const auto options = [&](int queue) {
      return Mail::Options{.rank = rank, .peers = {1 - rank}, .timeout = std::chrono::seconds(10), .queue = queue};
    };
    Mail first(transport, options(0)), second(transport, options(1));
    fn(rank, first, second);
    done.arrive_and_wait();
  });
}

void begin_gather(Mail& mail, const at::Tensor& output, const at::Tensor& input) {
  auto fingerprint = make_fingerprint(Operation::kAllGather, {});
  describe_data(fingerprint, {&input, 1}, 2);
  mail.begin(fingerprint);
  const int peer = 1 - static_cast<int>(input[0].item<float>());
  mail.send(peer, parcels_of({&input, 1}));
  mail.receive(peer, parcels_of({&output, 1}));
}

TEST(Mail, PostsReceivesOfLargeDataBeforeTheSenderIsThere) {
  std::barrier posted(2);
  run_mails([&](int rank, Mail& mail, Mail&) {
    const auto output = at::zeros({100'000}), input = at::ones({100'000}) * rank;
    if (rank == 1) posted.arrive_and_wait();
    begin_gather(mail, output, input);
    if (rank == 0) posted.arrive_and_wait();
    mail.finish();
    EXPECT_TRUE(output.eq(1 - rank).all().item<bool>());
  });
}

TEST(Mail, OfAQueueGoesOnThoughDataOfAnotherLengthCameInAnotherQueue) {
  std::barrier sent(2);
  run_mails([&](int rank, Mail& first, Mail& second) {
    const int64_t numel = 100'000 * (rank + 1);
    const auto output = at::full({numel}, -1.0f);
    begin_gather(first, output, at::ones({numel}) * rank);
    EXPECT_THROW(first.finish(), Disagreement);
    // Each rank has posted its receive and has seen the other rank's header. If data followed, it would arrive now.
    sent.arrive_and_wait();
    const auto other = at::zeros({100'000});
    begin_gather(second, other, at::ones({100'000}) * rank);
    EXPECT_NO_THROW(second.finish());
    EXPECT_TRUE(other.eq(1 - rank).all().item<bool>());
    EXPECT_TRUE(output.eq(-1).all().item<bool>());
  });
}

// A header has room for 8 KiB of data. Data that is larger takes one more message, and its small planes travel
// together.
TEST(ACollective, TakesOneMessageToEachRankThatItsDataGoesToAndOneMoreIfThatIsLarge) {
  constexpr int kWorld = 4;
  struct Row {
    const char* what;
    std::function<std::shared_ptr<Work>(Communicator& ranks, int64_t numel)> begin;
    std::array<int, kWorld> enclosed, beside;  // number of messages of each rank, for 2048 and for 2049 floats per peer
  };
  const auto gather = [](Communicator& ranks, const std::vector<int64_t>& lengths) {
    std::vector<GatherPlane> planes;
    for (const int64_t length : lengths) planes.push_back({at::empty({kWorld * length}), at::ones({length})});
    return ranks.all_gather(planes, {"w"});
  };
  const auto reduce = [](Communicator& ranks, const std::vector<int64_t>& lengths) {
    std::vector<ReducePlane> planes;
    for (const int64_t length : lengths) planes.push_back({at::empty({length}), {{0, at::ones({kWorld * length})}}});
    return ranks.reduce_scatter(std::move(planes), 1.0, {"w"});
  };
  const std::vector<Row> rows{
      {"all_gather",
       [&](Communicator& ranks, int64_t numel) { return gather(ranks, {numel}); },
       {3, 3, 3, 3},
       {6, 6, 6, 6}},
      {"all_gather of a large plane and small ones",
       [&](Communicator& ranks, int64_t numel) { return gather(ranks, {20, 10'000, numel - 36, 4}); },
       {6, 6, 6, 6},
       {6, 6, 6, 6}},
      {"all_gather of planes that are small together",
       [&](Communicator& ranks, int64_t numel) { return gather(ranks, {3000, 700, numel}); },
       {6, 6, 6, 6},
       {6, 6, 6, 6}},
      {"reduce_scatter",
       [&](Communicator& ranks, int64_t numel) { return reduce(ranks, {numel}); },
       {3, 3, 3, 3},
       {6, 6, 6, 6}},
      {"reduce_scatter of two planes",
       [&](Communicator& ranks, int64_t numel) { return reduce(ranks, {numel - 4, 4}); },
       {3, 3, 3, 3},
       {6, 6, 6, 6}},
      {"all_to_all",
       [](Communicator& ranks, int64_t numel) {
         return ranks.all_to_all(at::empty({kWorld * numel}), at::ones({kWorld * numel}), {"w"});
       },
       {3, 3, 3, 3},
       {6, 6, 6, 6}},
      // If a tensor has at most 16 KiB divided by the number of ranks, every rank sends all of it to all ranks. For a
      // larger tensor ranks exchange slices and then sums; here, slices are enclosed in headers and sums are not.
      {"all_reduce",
       [](Communicator& ranks, int64_t numel) {
         return ranks.all_reduce(at::ones({numel - 1024}), ReduceOp::kSum, {"w", {}});
       },
       {3, 3, 3, 3},
       {6, 6, 6, 6}},
      // The edges of the tree are 1 - 2, 1 - 3 and 2 - 0. Headers travel in both directions.
      {"broadcast",
       [](Communicator& ranks, int64_t numel) { return ranks.broadcast(at::ones({numel}), 1, {"w", {}}); },
       {1, 2, 2, 1},
       {1, 4, 3, 1}},
      {"barrier", [](Communicator& ranks, int64_t) { return ranks.barrier({"w"}); }, {2, 2, 2, 2}, {2, 2, 2, 2}},
      // Each rank sends a header to each neighbour, and the data to the next rank.
      {"a ring of messages",
       [](Communicator& ranks, int64_t numel) {
         const int next = (ranks.rank() + 1) % kWorld, previous = (ranks.rank() + 3) % kWorld;
         return ranks.send_recv(at::ones({numel}), next, at::empty({numel}), previous, {"w", {}});
       },
       {2, 2, 2, 2},
       {3, 3, 3, 3}}};
  for (const bool compares_first : {false, true}) {
    std::array<CountsPtr, kWorld> counts;
    for (auto& its : counts) its = std::make_shared<CountingBackend::Counts>();
    C10dOptions options;
    options.compares_first = compares_first;
    options.control = [&](const auto& store, int rank, int world_size, auto timeout) {
      return counting(counts[static_cast<size_t>(rank)])(store, rank, world_size, timeout);
    };
    run_c10d(kWorld, options, [&](Communicator& ranks) {
      const auto own = static_cast<size_t>(ranks.rank());
      for (const auto& row : rows) {
        const bool is_message = std::string_view(row.what) == "a ring of messages";
        const int comparing = !compares_first ? 0 : is_message ? 2 : kWorld - 1;
        for (const int64_t numel : {2048, 2049}) {
          ranks.barrier({})->wait();
          const int before = counts[own]->sends;
          row.begin(ranks, numel)->wait();
          const int expected = (numel == 2048 ? row.enclosed : row.beside)[own] + comparing;
          EXPECT_EQ(counts[own]->sends - before, expected) << row.what;
        }
      }
    });
  }
}

int count_sockets() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    count += std::filesystem::read_symlink(entry, gone).string().starts_with("socket:");
  }
  return count;
}

TEST(ConnectionsOfAFamily, AreOneForEachPairOfRanksHoweverManyQueuesThereAre) {
  constexpr int kWorld = 4;
  const int before = count_sockets();
  C10dOptions options;
  options.control = gloo;
  run_c10d(kWorld, options, [&](Communicator& ranks) {
    ranks.barrier({})->wait();
    const int connected = ranks.rank() == 0 ? count_sockets() : 0;
    ranks.barrier({})->wait();
    const auto first = ranks.duplicate("first"), second = first->duplicate("second");
    const int next = (ranks.rank() + 1) % kWorld, previous = (ranks.rank() + 3) % kWorld;
    for (auto* queue : {&ranks, first.get(), second.get()}) {
      const at::Tensor sum = at::ones({1000}), arrived = at::zeros({1000});
      const auto reduced = queue->all_reduce(sum, ReduceOp::kSum, {"w", {}});
      queue->send_recv(at::full({1000}, static_cast<float>(ranks.rank())), next, arrived, previous, {"w", {}})->wait();
      reduced->wait();
      EXPECT_TRUE(sum.eq(kWorld).all().item<bool>());
      EXPECT_TRUE(arrived.eq(previous).all().item<bool>());
    }
    ranks.barrier({})->wait();
    if (ranks.rank() != 0) return;
    EXPECT_EQ(count_sockets(), connected);
    // A rank has one socket for each connection and one on which it listens.
    EXPECT_LE(connected - before, kWorld * (kWorld - 1) + kWorld);
  });
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
                 {"expected a tensor on this rank's device cuda:0 or on the CPU, found one on meta"});
  });
}

}  // namespace
}  // namespace fsdp::test
