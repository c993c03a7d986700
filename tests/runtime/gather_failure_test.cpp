// Tests that a gather that throws halfway leaves the param group as it was.

#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>

#include <cstdint>
#include <functional>

#include "api/group_view.h"
#include "runtime/param_group.h"
#include "support/faulty_communicator.h"
#include "support/oracle.h"

namespace fsdp::test {
namespace {

// A param group with two dtypes, so a gather takes two collectives.
struct TwoDtypes : torch::nn::Module {
  torch::Tensor a = register_parameter("a", torch::arange(6, torch::kFloat).reshape({6, 1}));
  torch::Tensor b = register_parameter("b", torch::arange(8, torch::kDouble).reshape({8, 1}));
  torch::Tensor forward() const { return a.sum() + b.sum(); }
};
constexpr double kSum = 15 + 28;
constexpr int64_t kWholeBytesAtLeast = 6 * sizeof(float) + 8 * sizeof(double);

struct TwoDtypesOnRank {
  TwoDtypes net;
  Group group = fully_shard(static_cast<torch::nn::Module&>(net));

  double evaluate() {
    torch::NoGradGuard no_grad;
    ForwardScope scope(group);
    return net.forward().item<double>();
  }
  // The barrier returns only after the collectives that were begun before it, on every rank.
  void expect_nothing_whole() {
    barrier();
    EXPECT_EQ(group.stats().whole.current, 0);
  }
};

// Runs `body` on two ranks over Gloo. On the communicator for gathers, call number `at` fails, counted from the first
// gather.
void run_with_a_failing_call(int at, const std::function<void(int rank, TwoDtypesOnRank&)>& body) {
  constexpr int kCallsBefore = 2;  // duplicate(), and the comparison of ranks in fully_shard
  const auto wrap = [=](std::shared_ptr<Communicator> inner, int) {
    return make_faulty_communicator(std::move(inner), {.at = kCallsBefore + at, .lane = "main"});
  };
  run_thread_ranks_with(2, {.backend = "gloo", .wrap = wrap}, [&](int r) {
    TwoDtypesOnRank rank;
    body(r, rank);
  });
}

TEST(AGatherThatThrows, HoldsNoMemoryAndMayBeTriedAgain) {
  run_with_a_failing_call(0, [](int, TwoDtypesOnRank& rank) {
    EXPECT_THROW(rank.evaluate(), Error);
    rank.expect_nothing_whole();
    EXPECT_EQ(rank.group.stats().gathers, 0);
    EXPECT_EQ(rank.evaluate(), kSum);
    EXPECT_GE(rank.group.stats().whole.peak, kWholeBytesAtLeast);
    rank.expect_nothing_whole();
  });
}

TEST(AGatherThatThrows, StillTellsTheOtherRanksOfWritesWhenItIsTriedAgain) {
  run_with_a_failing_call(0, [](int r, TwoDtypesOnRank& rank) {
    {
      torch::NoGradGuard no_grad;
      if (r == 0) rank.net.a.add_(1), rank.net.b.add_(1);
    }
    EXPECT_THROW(rank.evaluate(), Error);
    EXPECT_THROW(rank.evaluate(), Mismatch) << "only rank 0 wrote";
  });
}

// Replaces the process's CPU allocator while it lives. It refuses blocks of the size that a thread sets in `refused`.
class PoorCpu : public c10::Allocator {
 public:
  PoorCpu() { c10::SetAllocator(c10::kCPU, this, kPriority); }
  ~PoorCpu() override { c10::SetAllocator(c10::kCPU, &rich_, kPriority); }
  PoorCpu(const PoorCpu&) = delete;
  PoorCpu& operator=(const PoorCpu&) = delete;

  c10::DataPtr allocate(size_t bytes) override {
    TORCH_CHECK(bytes != refused, "no memory");
    return rich_.allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return rich_.raw_deleter(); }
  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }

  inline static thread_local size_t refused = SIZE_MAX;

 private:
  static constexpr uint8_t kPriority = 100;
  c10::Allocator& rich_ = *c10::GetAllocator(c10::kCPU);
};

// Expects an error from `act` while this rank has memory for the first buffer only.
void expect_no_memory(TwoDtypesOnRank& rank, const std::function<void()>& act) {
  auto& flats = param_groups(rank.group).front()->flats();
  EXPECT_EQ(flats.size(), 2);
  EXPECT_NE(flats[0].whole().bytes(), flats[1].whole().bytes());
  PoorCpu::refused = flats[1].whole().bytes();
  EXPECT_THAT(act, testing::ThrowsMessage<c10::Error>(testing::HasSubstr("no memory")));
  PoorCpu::refused = SIZE_MAX;
  EXPECT_EQ(rank.group.stats().whole.current, 0);
}

TEST(AGatherThatThrows, ForLackOfMemoryOnOneRankHasBegunNothingThatItsPeersWaitFor) {
  const PoorCpu poor;
  run_thread_ranks_with(2, {.backend = "gloo"}, [](int r) {
    TwoDtypesOnRank rank;
    if (r == 0) {
      expect_no_memory(rank, [&] { rank.evaluate(); });
      EXPECT_EQ(rank.group.stats().gathers, 0);
    }
    EXPECT_EQ(rank.evaluate(), kSum);
    rank.expect_nothing_whole();
  });
}

TEST(SummonFullParams, ThatLacksMemoryForASecondBufferHoldsNone) {
  const PoorCpu poor;
  run_thread_ranks_with(2, {.backend = "shm"}, [](int r) {
    TwoDtypesOnRank rank;
    const auto summon = [&] { const auto whole = summon_full_params(rank.group); };
    if (r == 0)
      expect_no_memory(rank, summon);
    else
      summon();
    EXPECT_EQ(rank.group.stats().whole.current, 0);
    EXPECT_EQ(rank.evaluate(), kSum);
    rank.expect_nothing_whole();
  });
}

}  // namespace
}  // namespace fsdp::test
