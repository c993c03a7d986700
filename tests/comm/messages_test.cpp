// Tests of messages between two ranks, in patterns that real programs use.

#include <torch/torch.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>

#include "comm/frame.h"

namespace fsdp::test {
namespace {

// Returns the content of message `number` from rank `from` to rank `to`.
at::Tensor letter(int from, int to, int64_t bytes, int number = 0) {
  const at::Tensor period = (at::arange(251) + (from * 31 + to * 7 + number)).remainder_(251).to(at::kByte);
  return period.repeat({bytes / 251 + 1}).narrow(0, 0, bytes).contiguous();
}

void expect_letter(const at::Tensor& found, int from, int to, int number = 0) {
  EXPECT_TRUE(found.equal(letter(from, to, found.numel(), number))) << from << " to " << to << ", message " << number;
}

// Holds all works that a rank has begun, and the tensors that must live as long as they do.
struct Begun {
  std::vector<std::shared_ptr<Work>> works;
  std::vector<at::Tensor> outgoing;

  void send(int peer, int64_t bytes, int number = 0) {
    outgoing.push_back(letter(rank(), peer, bytes, number));
    works.push_back(all_ranks().send(outgoing.back(), peer, {"letter", {}}));
  }
  at::Tensor recv(int peer, int64_t bytes) {
    auto tensor = at::zeros({bytes}, at::kByte);
    works.push_back(all_ranks().recv(tensor, peer, {"letter", {}}));
    return tensor;
  }
  void wait() {
    for (const auto& work : works) work->wait();
  }
};

class CommMessages : public testing::TestWithParam<int> {
 protected:
  // Runs `fn` for sizes on both sides of the largest message that travels with its fingerprint. No rank leaves before
  // all are done, because messages alone do not ensure that.
  static void run(const std::function<void(int rank, int64_t bytes)>& fn) {
    std::vector<int64_t> sizes{0, 1, 8 << 10, (8 << 10) + 1, 1 << 20};
    // Larger messages take time and memory. They run only if FSDP_TEST_LARGE_MESSAGES=1 is set by hand.
    if (std::getenv("FSDP_TEST_LARGE_MESSAGES") != nullptr) sizes = {64 << 20};
    run_and_meet(world(), [&](int rank) {
      for (const int64_t bytes : sizes) {
        SCOPED_TRACE(bytes);
        fn(rank, bytes);
      }
    });
  }
  static int world() { return GetParam(); }
  static int next(int rank) { return (rank + 1) % world(); }
  static int previous(int rank) { return (rank + world() - 1) % world(); }
};

TEST_P(CommMessages, SendRecvRoundARing) {
  run([](int rank, int64_t bytes) {
    const auto mine = letter(rank, next(rank), bytes), arrived = at::zeros({bytes}, at::kByte);
    all_ranks().send_recv(mine, next(rank), arrived, previous(rank), {"letter", {}})->wait();
    expect_letter(arrived, previous(rank), rank);
  });
}

TEST_P(CommMessages, EverybodyToEverybody) {
  run([](int rank, int64_t bytes) {
    Begun begun;
    std::vector<at::Tensor> arrived(static_cast<size_t>(world()));
    for (int peer = 0; peer < world(); ++peer)
      if (peer != rank) begun.send(peer, bytes);
    for (int peer = world() - 1; peer >= 0; --peer)
      if (peer != rank) arrived[peer] = begun.recv(peer, bytes);
    begun.wait();
    for (int peer = 0; peer < world(); ++peer)
      if (peer != rank) expect_letter(arrived[peer], peer, rank);
  });
}

// Micro-batches go down the ranks and their gradients go up. A rank waits only for what it needs next.
TEST_P(CommMessages, APipelineBothWays) {
  constexpr int kBatches = 5;
  run([](int rank, int64_t bytes) {
    Begun sent;
    const auto is_there = [](int peer) { return peer >= 0 && peer < world(); };
    for (const int step : {1, -1}) {
      for (int batch = 0; batch < kBatches; ++batch) {
        if (is_there(rank - step)) {
          Begun wanted;
          const auto arrived = wanted.recv(rank - step, bytes);
          wanted.wait();
          expect_letter(arrived, rank - step, rank, batch);
        }
        if (is_there(rank + step)) sent.send(rank + step, bytes, batch);
      }
    }
    sent.wait();
  });
}

TEST_P(CommMessages, ManyMessagesOfADirectionMeetInTheirOrderThoughAllAreSentFirst) {
  constexpr int kMany = 7;
  run([](int rank, int64_t bytes) {
    Begun begun;
    std::vector<at::Tensor> arrived;
    for (int number = 0; number < kMany; ++number) begun.send(next(rank), bytes, number);
    for (int number = 0; number < kMany; ++number) arrived.push_back(begun.recv(previous(rank), bytes));
    begun.wait();
    for (int number = 0; number < kMany; ++number) expect_letter(arrived[number], previous(rank), rank, number);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, CommMessages, testing::Values(2, 3, 4));

TEST(CommMessagesBesides, CollectivesWaitForNone) {
  run_thread_ranks(3, [](int rank) {
    Begun begun;
    if (rank == 0) begun.send(2, 1000);
    fsdp::barrier();
    const at::Tensor sum = at::ones({100});
    sum_up(all_ranks(), sum);
    EXPECT_TRUE(sum.eq(3).all().item<bool>());
    const auto arrived = rank == 2 ? begun.recv(0, 1000) : at::Tensor();
    begun.wait();
    if (rank == 2) expect_letter(arrived, 0, 2);
  });
}

TEST(CommMessagesBesides, ADuplicateHasAQueueOfItsOwn) {
  run_thread_ranks(2, [](int rank) {
    const auto other = all_ranks().duplicate("other");
    const int peer = 1 - rank;
    const auto first = letter(rank, peer, 5000, 1), second = letter(rank, peer, 70, 2);
    const auto arrived = at::zeros({5000}, at::kByte), beside = at::zeros({70}, at::kByte);
    const auto a = all_ranks().send(first, peer, {}), b = other->send(second, peer, {});
    const auto c = other->recv(beside, peer, {}), d = all_ranks().recv(arrived, peer, {});
    for (const auto& work : {c, b, d, a}) work->wait();
    expect_letter(arrived, peer, rank, 1);
    expect_letter(beside, peer, rank, 2);
  });
}

TEST(CommMessagesBesides, TheyBeginAnewAfterAStartingOver) {
  run_thread_ranks(2, [](int rank) {
    for (int round = 0; round < 3; ++round) {
      Begun begun;
      begun.send(1 - rank, 300'000, round);
      const auto arrived = begun.recv(1 - rank, 300'000);
      begun.wait();
      expect_letter(arrived, 1 - rank, rank, round);
      const auto dropped = rank == 0 ? all_ranks().send(at::ones({4}), 1, {"never wanted", {}}) : nullptr;
      fsdp::barrier();
      all_ranks().start_over();
      if (dropped) {
        EXPECT_THROW(dropped->wait(), Error);
      }
    }
  });
}

// Returns the bytes of each shared segment that this process, and so every rank in it, has mapped, keyed by inode
// number.
std::map<std::string, size_t> shared_segments() {
  std::map<std::string, size_t> segments;
  std::ifstream maps("/proc/self/smaps");
  std::string segment;
  for (std::string line; std::getline(maps, line);) {
    std::array<char, 32> file{};
    size_t kib = 0;
    if (std::sscanf(line.c_str(), "%*x-%*x %*s %*s %*s %31s", file.data()) == 1)
      segment = line.find("/memfd:fsdp") == std::string::npos ? "" : file.data();
    else if (!segment.empty() && std::sscanf(line.c_str(), "Rss: %zu kB", &kib) == 1)
      segments[segment] += kib;
  }
  return segments;
}

TEST(MessagesOverSharedMemory, TakeMemoryWithTheFirstOneOfADirection) {
  // Segments of an earlier test may still be mapped.
  const auto of_others = shared_segments();
  const auto shared_kib = [&] {
    size_t sum = 0;
    for (const auto& [file, kib] : shared_segments())
      if (!of_others.contains(file)) sum += kib;
    return sum;
  };
  const auto talk = [&](int rank) {
    // Returns the shared bytes that a message adds. Only rank 0 counts them; the other ranks wait.
    const auto growth = [&](int from, int to) {
      fsdp::barrier();
      const size_t before = rank == 0 ? shared_kib() : 0;
      fsdp::barrier();
      Begun begun;
      if (rank == from) begun.send(to, 300'000);
      const auto arrived = rank == to ? begun.recv(from, 300'000) : at::Tensor();
      begun.wait();
      fsdp::barrier();
      return rank == 0 ? shared_kib() - before : 0;
    };
    const size_t first = growth(0, 1), again = growth(0, 1), back = growth(1, 0), beside = growth(2, 3);
    fsdp::barrier();  // a rank that leaves frees its memory
    if (rank != 0) return;
    EXPECT_GT(first, 0);
    EXPECT_EQ(again, 0);
    EXPECT_EQ(back, first);
    EXPECT_EQ(beside, first);
  };
  run_thread_ranks(4, talk, {.backend = "shm", .wrap = {}});
}

}  // namespace
}  // namespace fsdp::test
