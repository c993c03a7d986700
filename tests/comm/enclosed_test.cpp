// How many messages of a c10d backend small collectives and messages take: their data of up to 256 bytes from one rank
// to another goes with the fingerprints.

#include <gmock/gmock.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <thread>

#include "comm/c10d/c10d_communicator.h"
#include "comm/c10d/gloo_backend.h"
#include "support/counting_backend.h"

namespace fsdp::test {
namespace {

constexpr int kWorld = 3;

// Begins what is counted, with `numel` floats from a rank to another.
using Begin = std::function<std::shared_ptr<Work>(Communicator& ranks, int64_t numel)>;

// How many messages each rank sends, by rank.
std::vector<int> messages_of(const Begin& begin, int64_t numel) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<int> counts(kWorld);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kWorld; ++rank) {
    threads.emplace_back([&, rank] {
      const auto made = std::make_shared<CountingBackend::Counts>();
      C10dOptions options;
      options.ranks = {rank, kWorld};
      options.timeout = std::chrono::seconds(60);
      options.control = [made](const auto& keys, int own_rank, int size, auto timeout) {
        return c10::make_intrusive<CountingBackend>(make_gloo_backend(keys, own_rank, size, timeout, "127.0.0.1"),
                                                    made);
      };
      const auto ranks = make_c10d_communicator(store, std::move(options));
      ranks->barrier({})->wait();
      const int before = made->sends;
      begin(*ranks, numel)->wait();
      counts[static_cast<size_t>(rank)] = made->sends - before;
      ranks->barrier({})->wait();
    });
  }
  for (auto& thread : threads) thread.join();
  return counts;
}

TEST(ASmallCollective, TakesOneMessageToEachPeer) {
  struct Row {
    const char* what;
    Begin begin;
    std::vector<int> enclosed, beside;  // messages by rank of 64 floats and of 65
  };
  const auto offsets_of = [](int64_t numel) { return std::vector{int64_t{0}, numel, 2 * numel, 3 * numel}; };
  const std::vector<Row> rows{
      {"all_gather",
       [&](Communicator& ranks, int64_t numel) {
         return ranks.all_gather(at::empty({3 * numel}), at::ones({numel}), offsets_of(numel), {"w", {}});
       },
       {2, 2, 2},
       {4, 4, 4}},
      {"reduce_scatter",
       [&](Communicator& ranks, int64_t numel) {
         return ranks.reduce_scatter(at::empty({numel}), at::ones({3 * numel}), offsets_of(numel), {"w", {}});
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
      // A fingerprint to each neighbour, and the data.
      {"a ring of messages",
       [](Communicator& ranks, int64_t numel) {
         const int next = (ranks.rank() + 1) % kWorld, previous = (ranks.rank() + 2) % kWorld;
         return ranks.send_recv(at::ones({numel}), next, at::empty({numel}), previous, {"w", {}});
       },
       {2, 2, 2},
       {3, 3, 3}}};
  for (const auto& [what, begin, enclosed, beside] : rows) {
    EXPECT_EQ(messages_of(begin, 64), enclosed) << what;
    EXPECT_EQ(messages_of(begin, 65), beside) << what;
  }
}

}  // namespace
}  // namespace fsdp::test
