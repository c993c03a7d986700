// Tests of folders of checkpoints: which checkpoint is loaded, which are removed, and what an interrupted save leaves.

#include <gmock/gmock.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <random>

#include "comm/core/fault_point.h"
#include "state/files.h"
#include "state/format/checkpoint_reader.h"
#include "state/format/checksum.h"
#include "state/format/format_error.h"

namespace fsdp::state {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

struct StateFolder : ::testing::Test {
  const TemporaryFolder folder;
  const std::string path = folder.path();

  std::string step(int64_t number) const { return folder / name_of_step(number); }
};

TEST_F(StateFolder, TheNewestThatLatestNamesIsLoaded) {
  EXPECT_THAT(text_of_error([&] { find_checkpoint(folder / "none"); }), HasSubstr("no such folder"));
  EXPECT_THAT(text_of_error([&] { find_checkpoint(path); }), HasSubstr("expected a checkpoint, found none"));
  write_small_checkpoint(path, 1);
  write_small_checkpoint(path, 20);
  EXPECT_EQ(find_checkpoint(path), step(20));
  EXPECT_EQ(find_checkpoint(step(1)), step(1));
  for (const auto* latest : {"../../etc", "step-000000000003", "", "step-1"}) {
    write_text(folder / "latest", latest);
    EXPECT_EQ(find_checkpoint(path), step(20)) << latest;
  }
}

// Begins a save, and returns before anything is written.
void begin_save(const std::string& folder, int64_t step) {
  const FolderLock lock(folder);
  begin_step(folder, step, lock);
}

// Returns the exit status of a process that runs `act`. The status is 1 if `act` returns.
int status_of_process(const auto& act) {
  const auto child = fork();
  if (child == 0) {
    act();
    _exit(1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

// Returns the text that a save writes to the file `next` to announce the checkpoint `name`.
std::string promise_of(const std::string& folder, const std::string& name) {
  const auto text = read_manifest_text(folder + "/" + name);
  return name + " " + hex_of(checksum_of(std::as_bytes(std::span(text)))) + "\n";
}

// A save may end before its checkpoint has a name, or later, before `latest` is written. Steps may go down.
TEST_F(StateFolder, TheNewestIsTheLastOneThatGotItsName) {
  for (const int64_t step : {10, 20}) write_small_checkpoint(path, step);
  std::filesystem::copy(step(20), step(30));  // an earlier release, which set nothing aside, left it so
  EXPECT_EQ(find_checkpoint(path), step(20));
  EXPECT_FALSE(std::filesystem::exists(folder / "next"));
  write_text(folder / "next", "step-000000000015\n");
  EXPECT_EQ(find_checkpoint(path), step(20)) << "15 did not get its name";
  for (const auto& promise : {std::string("step-000000000030\n"), std::string("step-000000000030 0123456789abcdef\n"),
                              "step-000000000030" + promise_of(path, "step-000000000010").substr(17)}) {
    write_text(folder / "next", promise);
    EXPECT_EQ(find_checkpoint(path), step(20)) << "another 30 was to be the newest";
  }
  std::filesystem::copy(step(10), step(15));
  write_text(folder / "next", promise_of(path, "step-000000000015"));
  EXPECT_EQ(find_checkpoint(path), step(15)) << "it got its name, `latest` was not written";
  std::filesystem::remove(folder / "latest");
  EXPECT_EQ(find_checkpoint(path), step(15)) << "as the first save would leave it";
  write_small_checkpoint(path, 5);
  EXPECT_EQ(find_checkpoint(path), step(5));
}

// The first save ended after it had named its checkpoint and before it wrote `latest`. The second save ended before its
// checkpoint had a name.
TEST_F(StateFolder, TheNewestStaysThatAfterTwoSavesThatEnded) {
  write_small_checkpoint(path, 1);
  std::filesystem::copy(step(1), step(2));
  for (const bool joins : {false, true}) {
    write_text(folder / "latest", "step-000000000001\n");
    write_text(folder / "next", promise_of(path, "step-000000000002"));
    std::optional<FolderLock> lock = joins ? join_step(path, "partial-step-000000000003.00000000") : std::nullopt;
    if (!joins) begin_step(path, 3, lock.emplace(path));
    EXPECT_EQ(find_checkpoint(path), step(2));
    EXPECT_FALSE(std::filesystem::exists(folder / "next")) << "of which the next save writes another";
  }
}

// Returns the names of all checkpoints in the folder, including those that were set aside.
std::vector<std::string> names_of_checkpoints(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.is_directory()) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

TEST_F(StateFolder, WhoGoesBackToAnOlderOneSetsTheLargerOnesAside) {
  for (const int64_t step : {10, 20, 30, 40}) write_small_checkpoint(path, step, std::nullopt, R"({"run": 1})");
  write_small_checkpoint(path, 25, 2, R"({"run": 2})");
  EXPECT_THAT(names_of_checkpoints(path), ElementsAre("abandoned-step-000000000030", "abandoned-step-000000000040",
                                                      "step-000000000020", "step-000000000025"));
  write_small_checkpoint(path, 30, 2, R"({"run": 2})");
  EXPECT_THAT(complete_steps(path), ElementsAre(25, 30));
  for (const auto step : complete_steps(path)) std::filesystem::remove_all(folder / name_of_step(step));
  EXPECT_THAT(text_of_error([&] { find_checkpoint(path); }), HasSubstr("found none")) << "40 is of the first run";
  EXPECT_THAT(problems_of(folder / "abandoned-step-000000000040"), IsEmpty()) << "who names it may load it";
  for (const int64_t step : {30, 20}) write_small_checkpoint(path, step, 2, R"({"run": 3})");
  EXPECT_THAT(names_of_checkpoints(path),
              ElementsAre("abandoned-step-000000000030", "abandoned-step-000000000040", "step-000000000020"));
  EXPECT_EQ(read_manifest(folder / "abandoned-step-000000000030").extra, R"({"run":3})") << "the last of this name";
}

// The save of 20 ended after its checkpoint got its name. Those of 30 and 40 were still there; 40 was set aside.
TEST_F(StateFolder, TheNextSaveSetsAsideWhatAnInterruptedOneLeft) {
  for (const bool joins : {false, true}) {
    write_small_checkpoint(path, 20);
    for (const int64_t larger : {30, 40}) std::filesystem::copy(step(20), step(larger));
    std::filesystem::rename(step(40), folder / "replaced-step-000000000040");
    if (joins) {
      EXPECT_TRUE(join_step(path, "partial-step-000000000050.00000000"));
    } else {
      begin_save(path, 50);
    }
    EXPECT_THAT(complete_steps(path), ElementsAre(20));
  }
}

// The first run wrote 30 and 40 and was rewound to 20. The save of the new 30 ends before the checkpoint has its name.
TEST_F(StateFolder, WhatAnAbandonedRunWroteDoesNotComeBackByTheNameOfANewOne) {
  write_small_checkpoint(path, 20);
  for (const int64_t larger : {30, 40}) std::filesystem::copy(step(20), step(larger));
  const auto status = status_of_process([&] {
    on_fault_point = [](const char* place) {
      if (std::string_view(place) == "checkpoint promised") _exit(7);
    };
    write_small_checkpoint(path, 30, std::nullopt, R"({"epoch": 4})");
  });
  ASSERT_EQ(WEXITSTATUS(status), 7);
  EXPECT_TRUE(std::filesystem::exists(folder / "next"));
  EXPECT_EQ(find_checkpoint(path), step(20));
  {
    const FolderLock lock(path);
    begin_step(path, 30, lock);
    abandon_step(path, 30, lock);
  }
  EXPECT_EQ(find_checkpoint(path), step(20));
}

TEST_F(StateFolder, ThoseBeforeTheNewestAreRemoved) {
  for (const int64_t step : {1, 2, 3}) write_small_checkpoint(path, step, 2);
  EXPECT_THAT(complete_steps(path), ElementsAre(2, 3));
  write_small_checkpoint(path, 2, 1);
  EXPECT_THAT(complete_steps(path), ElementsAre(2)) << "the one that was just written stays";
  EXPECT_THAT(incomplete_names(path), IsEmpty());
}

// A save ends or fails after the old checkpoint has lost the name and before the new one has it.
TEST_F(StateFolder, OfTheSameStepIsThereUntilTheNewOneIs) {
  for (const bool is_killed : {false, true}) {
    write_small_checkpoint(path, 1);
    put_bytes(step(1) + "/old", "x");
    const auto status = status_of_process([&] {
      on_fault_point = [](const char* place) {
        if (std::string_view(place) == "checkpoint replaced") throw FormatError("no rename");
      };
      if (is_killed)
        on_fault_point = [](const char* place) {
          if (std::string_view(place) == "checkpoint replaced") _exit(7);
        };
      if (text_of_error([&] { write_small_checkpoint(path, 1); }) == "no rename") _exit(7);
    });
    ASSERT_EQ(WEXITSTATUS(status), 7);
    const auto place = is_killed ? folder / "replaced-step-000000000001" : step(1);
    EXPECT_EQ(find_checkpoint(path), place);
    EXPECT_THAT(places_of(step(1)), ElementsAre(place));
    EXPECT_THAT(complete_steps(path), ElementsAre(1));
    EXPECT_TRUE(std::filesystem::exists(place + "/old"));
    EXPECT_THAT(problems_of(path), IsEmpty());
    begin_save(path, 2);
    EXPECT_THAT(places_of(step(1)), ElementsAre(step(1))) << "it has its name again";
    EXPECT_TRUE(std::filesystem::exists(step(1) + "/old"));
    write_small_checkpoint(path, 1);
    EXPECT_FALSE(std::filesystem::exists(step(1) + "/old"));
    EXPECT_THAT(problems_of(path), IsEmpty());
  }
}

// The save ended before it removed the old checkpoint, which is no longer needed.
TEST_F(StateFolder, ThatWasReplacedGoesWithTheNextSave) {
  write_small_checkpoint(path, 1);
  for (const bool joins : {false, true}) {
    std::filesystem::copy(step(1), folder / "replaced-step-000000000001");
    EXPECT_EQ(find_checkpoint(path), step(1));
    if (joins) {
      EXPECT_TRUE(join_step(path, "partial-step-000000000002.00000000"));
    } else {
      begin_save(path, 2);
    }
    EXPECT_THAT(places_of(step(1)), ElementsAre(step(1)));
  }
}

TEST_F(StateFolder, ThatWasNotCompletedIsNoneAndGoesWithTheNextSave) {
  {
    const FolderLock lock(path);
    put_bytes(begin_step(path, 7, lock) + "/model-00000-of-00001.safetensors", "half");
  }
  EXPECT_THAT(complete_steps(path), IsEmpty());
  EXPECT_THAT(incomplete_names(path), ElementsAre(StartsWith("partial-step-000000000007.")));
  EXPECT_THAT(text_of_error([&] { find_checkpoint(path); }), HasSubstr("every save was interrupted"));
  write_small_checkpoint(path, 8);
  EXPECT_THAT(incomplete_names(path), IsEmpty());
}

// Steps repeat, go down as in runs that were rewound, or go up. A file beside the folder has the number of the last
// completed save.
TEST_F(StateFolder, SavingThatIsKilledAtAnyPointLeavesTheLastOneThatWasCompleted) {
  const auto run = folder / "run", completed = folder / "completed";
  int64_t number = 1, save = 1;
  const auto save_one = [&] {
    write_small_checkpoint(run, number, 2, std::to_string(save));
    write_text(completed, std::to_string(save));
  };
  save_one();
  std::mt19937 random(3);
  for (int trial = 0; trial < 25; ++trial) {
    const auto microseconds = static_cast<useconds_t>(500 + random() % 10000);
    const auto status = status_of_process([&] {
      signal(SIGALRM, SIG_DFL);
      ualarm(microseconds, 0);  // ends the process wherever it is then
      for (;;) {
        const auto distance = static_cast<int64_t>(random() % 3);  // 0: the same step again
        number = random() % 2 == 0 ? number + distance : std::max<int64_t>(number - distance, 0);
        ++save;
        save_one();
      }
    });
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) << status;
    CheckpointReader reader(run);
    const auto last = std::stoll(text_of_file(completed, 100)), found = std::stoll(reader.manifest().extra);
    EXPECT_GE(last, save);
    EXPECT_TRUE(found == last || found == last + 1) << found << " after " << last << " was completed";
    EXPECT_THAT(problems_of(reader.path()), IsEmpty());
    number = reader.manifest().step;
    save = found;
    write_text(completed, std::to_string(save));
  }
}

}  // namespace
}  // namespace fsdp::state
