// The timeout holds for an operation, however many ranks it waits for one after the other.

#include <fsdp/error.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "support/thread_ranks.h"

namespace fsdp::test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::SizeIs;

// Rank 0 waits for rank 1, then for rank 2, then for rank 3, for six tenths of the timeout each.
TEST(AnOperation, TimesOutThoughEachOfItsWaitsIsShorterThanTheTimeout) {
  constexpr std::chrono::milliseconds kTimeout{1500};
  std::vector<std::string> messages;
  std::mutex mutex;
  run_thread_ranks(4,
                   [&](int rank) {
                     fsdp::barrier();
                     std::this_thread::sleep_for(rank * kTimeout * 6 / 10);
                     try {
                       fsdp::barrier();
                     } catch (const Mismatch& error) {
                       std::lock_guard lock(mutex);
                       messages.emplace_back(error.what_without_backtrace());
                     }
                   },
                   {.timeout = kTimeout, .wrap = {}});
  EXPECT_THAT(messages, SizeIs(4));
  EXPECT_THAT(messages,
              Each(AllOf(HasSubstr("barrier (#"), HasSubstr(") timed out: rank "), HasSubstr("did not join"))));
}

}  // namespace
}  // namespace fsdp::test
