#include <gtest/gtest.h>

#include <array>

#include "comm/shm/culprit.h"
#include "comm/shm/segment.h"

namespace fsdp::shm {
namespace {

TEST(FindCulprit, IsThePeerThatComputes) {
  const std::array<Waiting, 2> ranks{Waiting{1, true}, Waiting{-1, false}};
  EXPECT_EQ(find_culprit(ranks, 0).rank, 1);
  EXPECT_FALSE(find_culprit(ranks, 0).is_deadlock);
}

TEST(FindCulprit, FollowsThoseThatWaitToTheOneThatDoesNot) {
  const std::array<Waiting, 4> ranks{Waiting{1, true}, Waiting{2, true}, Waiting{-1, false}, Waiting{0, true}};
  EXPECT_EQ(find_culprit(ranks, 3).rank, 2);
  EXPECT_EQ(find_culprit(ranks, 0).rank, 2);
}

TEST(FindCulprit, IsARankThatWasStoppedWhileItWaited) {
  const std::array<Waiting, 3> ranks{Waiting{1, true}, Waiting{0, false}, Waiting{0, true}};
  EXPECT_EQ(find_culprit(ranks, 0).rank, 1);
  EXPECT_EQ(find_culprit(ranks, 2).rank, 1);
  EXPECT_FALSE(find_culprit(ranks, 2).is_deadlock);
}

TEST(FindCulprit, SeesRanksThatWaitForEachOther) {
  const std::array<Waiting, 3> ranks{Waiting{1, true}, Waiting{2, true}, Waiting{0, true}};
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(find_culprit(ranks, rank).is_deadlock);
    EXPECT_EQ(find_culprit(ranks, rank).rank, (rank + 1) % 3);
  }
}

constexpr const char* kMeminfo = "MemTotal:       1000 kB\nMemAvailable:    600 kB\n";

TEST(AvailableBytes, IsTheMachinesWithoutALimit) {
  EXPECT_EQ(available_bytes(kMeminfo, "max\n", "1000\n"), 600u * 1024);
  EXPECT_EQ(available_bytes(kMeminfo, "", ""), 600u * 1024);
}

TEST(AvailableBytes, IsWhatTheControlGroupLeaves) {
  EXPECT_EQ(available_bytes(kMeminfo, "500000\n", "100000\n"), 400000u);
  EXPECT_EQ(available_bytes(kMeminfo, "500000\n", "600000\n"), 0u);
  EXPECT_EQ(available_bytes("", "500000\n", "100000\n"), 400000u);
}

TEST(AvailableBytes, IsUnknownWithoutEither) { EXPECT_EQ(available_bytes("", "max", ""), std::nullopt); }

TEST(Segment, IsZeroSealedAndAsLargeAsAskedFor) {
  const auto segment = make_segment(5000);
  const Mapping mapping(segment, 5000);
  for (size_t i = 0; i < 5000; ++i) ASSERT_EQ(mapping.data()[i], std::byte{0});
  EXPECT_EQ(ftruncate(segment.number(), 10), -1);
  EXPECT_EQ(ftruncate(segment.number(), 100000), -1);
}

TEST(Segment, OfMoreThanThereIsIsRefusedBeforeItIsMade) {
  try {
    make_segment(size_t{1} << 50);
    FAIL() << "no exception";
  } catch (const Obstacle& obstacle) {
    EXPECT_NE(std::string(obstacle.what()).find("expected 1073741824 MiB of memory for a shared segment, found "),
              std::string::npos)
        << obstacle.what();
  }
}

}  // namespace
}  // namespace fsdp::shm
