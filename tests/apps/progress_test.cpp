// Tests of a training's progress line, as it is written without a terminal.

#include "frame/progress.h"

#include <gmock/gmock.h>
#include <stdlib.h>

#include "launch/variables.h"

namespace frame {
namespace {

using testing::StartsWith;

constexpr double kNever = 1e9;

/// Returns what `act` writes to stdout.
std::string written_by(const auto& act) {
  testing::internal::CaptureStdout();
  act();
  return testing::internal::GetCapturedStdout();
}

TEST(Progress, IsDueAtTheFirstAndTheLastStepAndBetweenThemWhenTimeHasPassed) {
  const Progress seldom({.steps = 3, .items_per_step = 10, .seconds_between_lines = kNever});
  EXPECT_TRUE(seldom.is_due(1));
  EXPECT_FALSE(seldom.is_due(2));
  EXPECT_TRUE(seldom.is_due(3));
  testing::internal::CaptureStdout();  // stdout is no terminal then
  const Progress always({.steps = 3, .items_per_step = 10, .seconds_between_lines = 0});
  testing::internal::GetCapturedStdout();
  EXPECT_TRUE(always.is_due(2));
}

TEST(Progress, ShowsTheStepItsLossAndBytesByClassAndNotesOnLinesOfTheirOwn) {
  const std::string text = written_by([] {
    Progress progress({.steps = 4, .items_per_step = 10, .items = "images", .seconds_between_lines = kNever});
    fsdp::GroupStats memory;
    memory.rows.current = 1'000'000;
    memory.whole.peak = 20'000'000;
    progress.show({2, 0.5, memory});
    progress.note("validated");
  });
  EXPECT_THAT(text, StartsWith("step 2/4  loss 0.500  "));
  EXPECT_THAT(text, testing::HasSubstr(" images/s  "));
  EXPECT_THAT(text,
              testing::EndsWith(
                  " left  rows 1.00 MB, whole at most 20.0 MB, gradients 0.00 MB, optimizer 0.00 MB\nvalidated\n"));
}

TEST(Progress, BehindALauncherOnATerminalIsOneLineThatIsWrittenAgainAndGivesWayToNotes) {
  const std::string text = written_by([] {
    setenv(fsdp::kTerminalColumnsVariable, "20", 1);
    Progress progress({.steps = 4, .items_per_step = 10});
    unsetenv(fsdp::kTerminalColumnsVariable);
    EXPECT_TRUE(progress.is_due(1));
    progress.show({1, 0.5, {}});
    progress.show({2, 0.25, {}});
    progress.note("validated");
    progress.note("saved");
  });
  EXPECT_EQ(text, "step 1/4  loss 0.50\x1b[K\rstep 2/4  loss 0.25\x1b[K\rvalidated\x1b[K\nsaved\n");
}

TEST(Progress, IsForTerminalsWithoutSecondsBetweenLinesAndForNobodyOnASilentRank) {
  for (const bool is_silent : {false, true}) {
    const std::string text = written_by([&] {
      Progress::Options options{.steps = 1, .items_per_step = 10, .is_silent = is_silent};
      if (is_silent) options.seconds_between_lines = 0;
      Progress progress(options);
      EXPECT_FALSE(progress.is_due(1));
      progress.show({1, 0.5, {}});
      progress.note("tested");
    });
    EXPECT_EQ(text, is_silent ? "" : "tested\n");
  }
}

TEST(Progress, TimeFromAPauseToTheNextNoteDoesNotCount) {
  Progress progress({.steps = 2, .items_per_step = 10, .seconds_between_lines = kNever, .is_silent = true});
  progress.pause();
  const double seconds = progress.seconds();
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(progress.seconds(), seconds);
  progress.note("validated");
  EXPECT_GE(progress.seconds(), seconds);
  progress.pause();
  EXPECT_GT(progress.seconds(), seconds);
}

}  // namespace
}  // namespace frame
