// Which parameters of a group are reduced together.

#include "runtime/buckets.h"

#include <gmock/gmock.h>

namespace fsdp::runtime {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Buckets, AreCutFromTheLastSlotAndTheFirstOneIsSmaller) {
  const std::vector<SlotBytes> slots{{10}, {10}, {10}, {10}, {10}, {10}};
  EXPECT_THAT(cut_buckets(slots, 20, 30), ElementsAre(SlotRun{4, 6}, SlotRun{1, 4}, SlotRun{0, 1}));
}

TEST(Buckets, HaveOneSlotWhereThatIsLargerThanTheyMayBe) {
  const std::vector<SlotBytes> slots{{1}, {50}, {1}, {50}};
  EXPECT_THAT(cut_buckets(slots, 10, 10), ElementsAre(SlotRun{3, 4}, SlotRun{2, 3}, SlotRun{1, 2}, SlotRun{0, 1}));
}

TEST(Buckets, FirstOfThemIsNoLargerThanTheOthers) {
  const std::vector<SlotBytes> slots{{10}, {10}, {10}};
  EXPECT_THAT(cut_buckets(slots, 100, 10), ElementsAre(SlotRun{2, 3}, SlotRun{1, 2}, SlotRun{0, 1}));
}

TEST(Buckets, SpanNoTwoBuffers) {
  const std::vector<SlotBytes> slots{{1, 0}, {1, 0}, {1, 1}, {0, 1}};
  EXPECT_THAT(cut_buckets(slots, 100, 100), ElementsAre(SlotRun{2, 4}, SlotRun{0, 2}));
}

TEST(Buckets, OfNoSlotAreNone) { EXPECT_THAT(cut_buckets({}, 1, 1), IsEmpty()); }

}  // namespace
}  // namespace fsdp::runtime
