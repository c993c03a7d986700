#include <poll.h>

#include <future>
#include <optional>

#include "comm/frame.h"
#include "comm/shm/links.h"
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
  const auto segment = make_segment(5000);
  const Mapping mapping(segment, 5000);
  for (size_t i = 0; i < 5000; ++i) ASSERT_EQ(mapping.data()[i], std::byte{0});
  EXPECT_EQ(ftruncate(segment.number(), 10), -1);
  EXPECT_EQ(ftruncate(segment.number(), 100000), -1);
}

TEST(Segment, OfMoreThanThereIsIsRefusedBeforeItIsMade) {
  std::string says;
  try {
    make_segment(size_t{1} << 50);
  } catch (const Obstacle& obstacle) {
    says = obstacle.what();
  }
  EXPECT_THAT(says, testing::HasSubstr("expected 1073741824 MiB of memory for a shared segment, found "));
}

void expect_lost(const Listener& own, const std::vector<std::string>& names, int rank, int lost, const char* how,
                 std::chrono::milliseconds timeout = std::chrono::milliseconds(200)) {
  try {
    const Links links(own, names, {rank, static_cast<int>(names.size())}, timeout);
    FAIL() << "no exception";
  } catch (const PeerLost& error) {
    EXPECT_EQ(error.rank(), lost);
    EXPECT_THAT(error.what(), testing::HasSubstr(how));
  }
}

TEST(Links, ARankThatHasEndedOrDoesNotComeIsALostRank) {
  const std::string stale = Listener().contact();
  const Listener own;
  expect_lost(own, {stale, own.contact()}, 1, 0, "nobody listens at rank 0's socket");
  expect_lost(own, {own.contact(), "nobody"}, 0, 1, "rank 1 did not connect within the timeout");
}

TEST(Links, ARankThatEndsWhileAnotherOneIsWaitedForIsTheLostOne) {
  std::optional<Listener> ending(std::in_place);
  const Listener own;
  const auto waiting =
      std::async(std::launch::async, [&, names = std::vector{ending->contact(), own.contact(), std::string("nobody")}] {
        expect_lost(own, names, 1, 0, "rank 0 connected and ended", std::chrono::minutes(1));
      });
  pollfd connection{ending->descriptor(), POLLIN, 0};
  ASSERT_EQ(poll(&connection, 1, -1), 1);
  ending.reset();
}

}  // namespace
}  // namespace fsdp::shm
