// The line that says how far training is, as it is written where there is no terminal.

#include "train/progress.h"

#include <gmock/gmock.h>
#include <stdlib.h>

#include "launch/variables.h"

namespace fsdp::train {
namespace {

using testing::StartsWith;

constexpr double kNever = 1e9;

/// What `act` writes to stdout.
std::string written_by(const auto& act) {
  testing::internal::CaptureStdout();
  act();
  return testing::internal::GetCapturedStdout();
}

TEST(Progress, IsDueAtTheFirstAndTheLastStepAndBetweenThemWhenTimeHasPassed) {
  const Progress seldom(/*steps=*/3, /*tokens_per_step=*/10, kNever, /*is_silent=*/false);
  EXPECT_TRUE(seldom.is_due(1));
  EXPECT_FALSE(seldom.is_due(2));
  EXPECT_TRUE(seldom.is_due(3));
  testing::internal::CaptureStdout();  // no terminal
  const Progress always(3, 10, /*seconds_between_lines=*/0, false);
  testing::internal::GetCapturedStdout();
  EXPECT_TRUE(always.is_due(2));
}

TEST(Progress, ShowsTheStepItsLossAndBytesByClassAndNotesOnLinesOfTheirOwn) {
  const std::string text = written_by([] {
    Progress progress(4, 10, kNever, false);
    GroupStats memory;
    memory.rows.current = 1'000'000;
    memory.whole.peak = 20'000'000;
    progress.show({2, 0.5, memory});
    progress.note("validated");
  });
  EXPECT_THAT(text, StartsWith("step 2/4  loss 0.500  "));
  EXPECT_THAT(text,
              testing::EndsWith(
                  " left  rows 1.00 MB, whole at most 20.0 MB, gradients 0.00 MB, optimizer 0.00 MB\nvalidated\n"));
}

TEST(Progress, BehindALauncherOnATerminalIsOneLineThatIsWrittenAgain) {
  const std::string text = written_by([] {
    setenv(kTerminalColumnsVariable, "20", 1);
    Progress progress(4, 10, kNever, false);
    unsetenv(kTerminalColumnsVariable);
    progress.show({1, 0.5, {}});
    progress.show({2, 0.25, {}});
    progress.note("validated");
  });
  EXPECT_EQ(text, "step 1/4  loss 0.50\x1b[K\rstep 2/4  loss 0.25\x1b[K\r\nvalidated\n");
}

TEST(Progress, OfASilentRankWritesNothingAndIsNeverDue) {
  const std::string text = written_by([] {
    Progress progress(1, 10, 0, /*is_silent=*/true);
    EXPECT_FALSE(progress.is_due(1));
    progress.show({1, 0.5, {}});
    progress.note("validated");
  });
  EXPECT_EQ(text, "");
}

TEST(Progress, TimeFromAPauseToTheNextNoteDoesNotCount) {
  Progress progress(2, 10, kNever, /*is_silent=*/true);
  progress.pause();
  const double seconds = progress.seconds();
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(progress.seconds(), seconds);
  progress.note("validated");
  EXPECT_GE(progress.seconds(), seconds);
  progress.pause();
  EXPECT_GT(progress.seconds(), seconds);
}

}  // namespace
}  // namespace fsdp::train
