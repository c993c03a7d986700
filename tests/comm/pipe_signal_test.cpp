#include "comm/posix/signals.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

namespace fsdp {
namespace {

// Writes to a pipe without a reader, and returns errno.
int write_to_nobody() {
  int ends[2];
  if (pipe(ends) != 0) return -1;
  close(ends[0]);
  const bool wrote = write(ends[1], "x", 1) == 1;
  const int error = wrote ? 0 : errno;
  close(ends[1]);
  return error;
}

TEST(PipeSignalDeathTest, EndsAProgramThatDoesNotBlockIt) {
  const auto write_as_by_default = [] {
    signal(SIGPIPE, SIG_DFL);
    write_to_nobody();
  };
  EXPECT_EXIT(write_as_by_default(), testing::KilledBySignal(SIGPIPE), "");
}

TEST(PipeSignal, IsBlockedForThisThreadAndThoseThatItStartsUntilTheOutermostBlockEnds) {
  std::thread([] {
    {
      const PipeSignalBlocked outer;
      {
        const PipeSignalBlocked inner;
      }
      EXPECT_EQ(write_to_nobody(), EPIPE);
      std::thread([] { EXPECT_EQ(write_to_nobody(), EPIPE); }).join();
    }
    sigset_t mask, pending;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    EXPECT_EQ(sigismember(&mask, SIGPIPE), 0);
    sigpending(&pending);
    EXPECT_EQ(sigismember(&pending, SIGPIPE), 0) << "the signal would come afterwards";
  }).join();
}

}  // namespace
}  // namespace fsdp
