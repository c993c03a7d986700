#include <unistd.h>

#include <functional>
#include <optional>

#include "comm/frame.h"
#include "comm/shm/peers.h"
#include "comm/shm/segment.h"
#include "launch/child.h"

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

TEST(Segment, OfAnotherUserIsAnObstacle) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const auto segment = make_segment("fsdp-test", 4096);
  auto child = fork_child([process = getpid()] {
    if (setuid(65534) != 0) return 1;
    try {
      find_segment(process, "fsdp-test");
      return 2;
    } catch (const Obstacle& obstacle) {
      return std::string_view(obstacle.what()).find("failed: Permission denied") == std::string_view::npos ? 3 : 0;
    }
  });
  while (!child.has_ended()) std::this_thread::yield();
  EXPECT_EQ(child.status()->describe(), "exited with code 0");
}

TEST(Peers, ARankThatHasEndedOrDoesNotComeIsALostRank) {
  const Contact own{getpid(), "fsdp-test-page"}, ended{1 << 30, "fsdp-ended"}, silent{getpid(), "fsdp-silent"};
  struct Case {
    std::vector<Contact> contacts;
    int rank, lost;
    const char* how;
    std::chrono::milliseconds timeout = std::chrono::minutes(1);
  };
  const Case cases[]{{{ended, own}, 1, 0, "rank 0 has ended"},
                     {{own, ended}, 0, 1, "ended"},
                     {{own, silent}, 0, 1, "timed out: rank 1 ", std::chrono::milliseconds(200)}};
  for (const auto& [contacts, rank, lost, how, timeout] : cases) {
    SCOPED_TRACE(how);
    const auto page = make_host_page(2, own.page);
    try {
      const Peers peers(contacts, {rank, 2}, timeout, std::make_shared<OwnRank>());
      ADD_FAILURE() << "no exception";
    } catch (const PeerLost& error) {
      EXPECT_EQ(error.rank(), lost);
      EXPECT_THAT(error.what_without_backtrace(), testing::HasSubstr(how));
    }
  }
}

}  // namespace
}  // namespace fsdp::shm
