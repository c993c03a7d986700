// Tests that schedules are complete, cannot deadlock, and take the time that published formulas give. Tests of what is
// refused follow.

#include <fsdp/error.h>
#include <fsdp/pipeline_schedule.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace fsdp {
namespace {

using Kind = PipelineAction::Kind;

// Returns the largest number of micro-batches that a rank's stages hold at a time, from the beginning of their forward
// to the end of their backward.
int most_held(const std::vector<PipelineAction>& actions) {
  int held = 0, most = 0;
  for (const auto& action : actions) most = std::max(most, held += action.kind == Kind::kForward ? 1 : -1);
  return most;
}

double forward_and_twice_as_long_backward(const PipelineAction& action) {
  return action.kind == Kind::kForward ? 1 : 2;
}

TEST(Schedule, TheBubbleIsThatOfTheFormula) {
  for (int ranks = 1; ranks <= 5; ++ranks)
    for (int micro_batches = ranks; micro_batches <= 4 * ranks; ++micro_batches) {
      // The idle share of the step is (p - 1) / (m + p - 1).
      const double expected = (ranks - 1.0) / (micro_batches + ranks - 1.0);
      for (const auto& schedule :
           {gpipe_schedule(ranks, micro_batches), one_forward_one_backward_schedule(ranks, micro_batches)}) {
        const auto times = simulate(schedule, forward_and_twice_as_long_backward);
        EXPECT_NEAR(times.bubble(), expected, 1e-12) << schedule.name << ' ' << ranks << ' ' << micro_batches;
        EXPECT_EQ(times.total, 3 * (micro_batches + ranks - 1)) << schedule.name;
      }
      if (micro_batches % ranks != 0) continue;
      for (int chunks = 2; chunks <= 4; ++chunks) {
        // The idle time is (p - 1) / (v m) of the ideal time, if each chunk takes 1 / v of the rank's time.
        const auto times = simulate(one_forward_one_backward_schedule(ranks, micro_batches, chunks),
                                    forward_and_twice_as_long_backward);
        EXPECT_EQ(times.total, 3 * (chunks * micro_batches + ranks - 1))
            << ranks << ' ' << micro_batches << ' ' << chunks;
      }
    }
}

TEST(Schedule, ARankHoldsTheActivationsThatTheTableSays) {
  for (int ranks = 1; ranks <= 4; ++ranks)
    for (int micro_batches = 1; micro_batches <= 9; ++micro_batches)
      for (int rank = 0; rank < ranks; ++rank) {
        const auto at = static_cast<size_t>(rank);
        EXPECT_EQ(most_held(gpipe_schedule(ranks, micro_batches).actions[at]), micro_batches);
        EXPECT_EQ(most_held(one_forward_one_backward_schedule(ranks, micro_batches).actions[at]),
                  std::min(micro_batches, ranks - rank));
      }
}

// A step of slices takes the time of TeraPipe's formula, T = sum t_i + (K - 1) max t_i, in either direction.
TEST(Schedule, SlicesTakeTheTimeOfTheFormula) {
  const std::vector<int64_t> lengths = {5, 3, 4, 2};
  const auto of_slice = [&](const PipelineAction& action) {
    return static_cast<double>(lengths[static_cast<size_t>(action.slice)]);
  };
  for (int ranks = 1; ranks <= 6; ++ranks)
    EXPECT_EQ(simulate(terapipe_schedule(ranks, 1, lengths), of_slice).total, 2 * (14 + (ranks - 1) * 5)) << ranks;
}

TEST(Schedule, ATransferDelaysWhatTakesItFromAnotherRank) {
  // With two ranks and one micro-batch, the step is: forward, transfer, forward, backward, transfer, backward.
  EXPECT_EQ(simulate(gpipe_schedule(2, 1), forward_and_twice_as_long_backward, 10).total, 1 + 10 + 1 + 2 + 10 + 2);
}

TEST(Schedule, IsDrawnAsALineForEachRank) {
  const auto schedule = one_forward_one_backward_schedule(2, 2);
  EXPECT_EQ(to_text(schedule, simulate(schedule, [](const auto&) { return 1; })),
            "rank 0: F0.0 F1.0 .    B0.0 .    B1.0\n"
            "rank 1: .    F0.1 B0.1 F1.1 B1.1 .\n");
  EXPECT_EQ((PipelineAction{Kind::kBackward, 3, 12, 4}.name()), "B12.3:4");
}

TEST(Schedule, WhatCannotRunIsRefused) {
  const auto refusal_of = [](const auto& act) {
    try {
      act();
    } catch (const UsageError& error) {
      return std::string(error.what_without_backtrace());
    }
    return std::string();
  };
  const auto after = [&](const auto& change) {
    auto schedule = one_forward_one_backward_schedule(2, 2);
    change(schedule.actions);
    return refusal_of([&] { validate(schedule); });
  };
  using Ranks = std::vector<std::vector<PipelineAction>>;
  EXPECT_EQ(after([](Ranks&) {}), "");
  EXPECT_THAT(after([](Ranks& ranks) { ranks.pop_back(); }),
              testing::HasSubstr("expected the actions of 2 ranks, found those of 1"));
  EXPECT_THAT(after([](Ranks& ranks) { ranks[1].pop_back(); }), testing::HasSubstr("rank 1 lacks the action B1.1"));
  EXPECT_THAT(after([](Ranks& ranks) { ranks[0].push_back(ranks[0][0]); }),
              testing::HasSubstr("rank 0 has the action F0.0 twice"));
  EXPECT_THAT(after([](Ranks& ranks) { ranks[0][0].stage = 1; }),
              testing::HasSubstr("rank 0 has the action F0.1, which the schedule cannot contain"));
  EXPECT_THAT(after([](Ranks& ranks) { ranks[0][0].micro_batch = 7; }),
              testing::HasSubstr("F7.0, which the schedule cannot contain"));
  // Rank 0 waits for a gradient before it sends the tensor that rank 1 needs first.
  EXPECT_THAT(after([](Ranks& ranks) { std::ranges::reverse(ranks[0]); }),
              testing::AllOf(testing::HasSubstr("rank 0 has B1.0 next, which needs F1.0"),
                             testing::HasSubstr("rank 1 has F0.1 next, which needs F0.0")));
  EXPECT_THAT(refusal_of([] { one_forward_one_backward_schedule(3, 4, 2); }),
              testing::HasSubstr("a multiple of the 3 ranks, found 4"));
  EXPECT_THAT(refusal_of([] { gpipe_schedule(2, 0); }), testing::HasSubstr("'micro_batches', found 0"));
  EXPECT_THAT(refusal_of([] { terapipe_schedule(2, 1, {}); }), testing::HasSubstr("'slices', found 0"));
  EXPECT_THAT(refusal_of([] { terapipe_schedule(2, 1, {4, 0}); }), testing::HasSubstr("found lengths 4, 0"));
}

}  // namespace
}  // namespace fsdp
