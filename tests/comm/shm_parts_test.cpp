#include <unistd.h>

#include <functional>
#include <optional>

#include "comm/frame.h"
#include "comm/shm/segment.h"

namespace fsdp::shm {
namespace {

TEST(LeftByLimit, IsWhatTheControlGroupLeavesWithoutPagesOfFiles) {
  const char* stat = "anon 1\nfile 250000\ninactive_file 200000\nactive_file 50000\ntotal_inactive_file 7\n";
  EXPECT_EQ(left_by_limit("max\n", "1000\n", ""), std::nullopt);
  EXPECT_EQ(left_by_limit("", "", ""), std::nullopt);
  EXPECT_EQ(left_by_limit("500000\n", "100000\n", ""), 400000u);
  EXPECT_EQ(left_by_limit("500000\n", "600000\n", ""), 0u);
  EXPECT_EQ(left_by_limit("500000\n", "500000\n", stat), 250000u);
  EXPECT_EQ(left_by_limit("500000\n", "500000\n", "total_inactive_file 7\n"), 0u);
}

TEST(Segment, IsZeroSealedAndAsLargeAsAskedFor) {
  const auto segment = make_segment("fsdp-test", 5000);
  const auto memory = map_segment(segment, 5000);
  for (size_t i = 0; i < 5000; ++i) ASSERT_EQ(memory.get()[i], std::byte{0});
  EXPECT_EQ(ftruncate(segment.number(), 10), -1);
  EXPECT_EQ(ftruncate(segment.number(), 100000), -1);
}

void expect_obstacle(const std::function<void()>& act, const char* what) {
  try {
    act();
    FAIL() << "no exception";
  } catch (const Obstacle& obstacle) {
    EXPECT_THAT(obstacle.what(), testing::HasSubstr(what));
  }
}

TEST(Segment, OfMoreThanThereIsIsRefusedBeforeItIsMade) {
  expect_obstacle([] { make_segment("fsdp-test", size_t{1} << 50); },
                  "expected 1073741824 MiB of memory for a shared segment, found ");
}

TEST(Segment, IsFoundByItsNameWhileAProcessHasItOpenAndMappedOnce) {
  auto segment = std::make_optional(make_segment("fsdp-test", 4096));
  const auto memory = map_segment(*segment), again = map_segment(find_segment(getpid(), "fsdp-test"), 4096);
  EXPECT_EQ(memory, again);
  expect_obstacle([&] { map_segment(*segment, 8192); }, "expected 8192 bytes, found 4096");
  EXPECT_FALSE(find_segment(getpid(), "fsdp-tes").is_open());
  segment.reset();
  EXPECT_FALSE(find_segment(getpid(), "fsdp-test").is_open());
  EXPECT_FALSE(find_segment(1 << 30, "fsdp-test").is_open());
}

}  // namespace
}  // namespace fsdp::shm
