// Which gradients a backward has yet to give a group, by slots.

#include "runtime/expectations.h"

#include <gtest/gtest.h>

namespace fsdp::runtime {
namespace {

using enum GradientSource;

Expectations expecting(const std::vector<GradientSource>& sources) {
  Expectations expectations;
  expectations.begin(sources.size());
  for (size_t slot = 0; slot < sources.size(); ++slot) expectations.expect(slot, sources[slot]);
  return expectations;
}

TEST(Expectations, OfNothingAreComplete) {
  for (const auto& expectations : {Expectations(), expecting({}), expecting({kNone, kNone})}) {
    EXPECT_TRUE(expectations.is_complete());
    EXPECT_FALSE(expectations.expects_any());
    EXPECT_FALSE(expectations.awaits_recomputation_only());
  }
}

TEST(Expectations, AreCompleteWhenEachSlotHasItsGradient) {
  auto expectations = expecting({kTask, kNone, kTask});
  expectations.arrive(2, kTask);
  EXPECT_FALSE(expectations.is_complete());
  expectations.arrive(0, kTask);
  EXPECT_TRUE(expectations.is_complete());
  EXPECT_TRUE(expectations.expects_any()) << "the backward gave some";
}

TEST(Expectations, CountAGradientThatComesTwiceOrUnexpectedlyOnce) {
  auto expectations = expecting({kTask, kNone, kTask});
  for (int i = 0; i < 3; ++i) expectations.arrive(0, kTask);
  expectations.arrive(1, kTask);
  EXPECT_FALSE(expectations.is_complete());
}

TEST(Expectations, OfAForwardThatRunsAgainAreMetByABackwardInsideOnly) {
  auto expectations = expecting({kTask, kInside});
  EXPECT_FALSE(expectations.awaits_recomputation_only());
  expectations.arrive(1, kTask);
  expectations.arrive(0, kInside);
  EXPECT_FALSE(expectations.awaits_recomputation_only()) << "the outermost task has yet to give slot 0 its gradient";
  expectations.arrive(0, kTask);
  EXPECT_TRUE(expectations.awaits_recomputation_only());
  EXPECT_FALSE(expectations.is_complete());
  expectations.arrive(1, kInside);
  EXPECT_TRUE(expectations.is_complete());
  EXPECT_FALSE(expectations.awaits_recomputation_only());
}

TEST(Expectations, BeginAgainWithEachBackward) {
  auto expectations = expecting({kTask, kInside});
  expectations.begin(2);
  EXPECT_TRUE(expectations.is_complete());
  EXPECT_FALSE(expectations.expects_any());
}

}  // namespace
}  // namespace fsdp::runtime
