// Folders of checkpoints: which one is loaded, what goes, and what saves leave that end at any point.

#include <gmock/gmock.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <random>

#include "comm/core/fault_point.h"
#include "state/format/checkpoint_reader.h"
#include "state/format/checksum.h"
#include "state/format/format_error.h"
#include "state/format/host_name.h"
#include "state/files.h"

namespace fsdp::state {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

TEST(StateFolder, TheNewestThatLatestNamesIsLoaded) {
  const TemporaryFolder folder;
  EXPECT_THAT(format_error_of([&] { find_checkpoint(folder / "none"); }), HasSubstr("no such folder"));
  EXPECT_THAT(format_error_of([&] { find_checkpoint(folder.path()); }), HasSubstr("expected a checkpoint, found none"));
  write_small_checkpoint(folder.path(), 1);
  write_small_checkpoint(folder.path(), 20);
  EXPECT_EQ(find_checkpoint(folder.path()), folder / "step-000000000020");
  EXPECT_EQ(find_checkpoint(folder / "step-000000000001"), folder / "step-000000000001");
  for (const auto* latest : {"../../etc", "step-000000000003", "", "step-1"}) {
    write_text(folder / "latest", latest);
    EXPECT_EQ(find_checkpoint(folder.path()), folder / "step-000000000020") << latest;
  }
}

// As a save begins; it ends before it writes anything.
void begin_save(const std::string& folder, int64_t step) {
  const FolderLock lock(folder);
  begin_step(folder, step, lock);
}

// How a process ended that ran `act`: with 1 if that returned.
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

// What `next` says of a checkpoint.
std::string promise_of(const std::string& folder, const std::string& name) {
  const auto text = read_manifest_text(folder + "/" + name);
  return name + " " + hex_of(checksum_of(std::as_bytes(std::span(text)))) + "\n";
}

// A save may end before the checkpoint has its name, and between that and `latest`; steps may be smaller than before.
TEST(StateFolder, TheNewestIsTheLastOneThatGotItsName) {
  const TemporaryFolder folder;
  for (const int64_t step : {30, 10, 20}) write_small_checkpoint(folder.path(), step);
  EXPECT_EQ(find_checkpoint(folder.path()), folder / "step-000000000020");
  EXPECT_FALSE(std::filesystem::exists(folder / "next"));
  write_text(folder / "next", "step-000000000015\n");
  EXPECT_EQ(find_checkpoint(folder.path()), folder / "step-000000000020") << "15 did not get its name";
  for (const auto& promise : {std::string("step-000000000030\n"), std::string("step-000000000030 0123456789abcdef\n"),
                              "step-000000000030" + promise_of(folder.path(), "step-000000000010").substr(17)}) {
    write_text(folder / "next", promise);
    EXPECT_EQ(find_checkpoint(folder.path()), folder / "step-000000000020") << "another 30 was to be the newest";
  }
  std::filesystem::copy(folder / "step-000000000010", folder / "step-000000000015");
  write_text(folder / "next", promise_of(folder.path(), "step-000000000015"));
  EXPECT_EQ(find_checkpoint(folder.path()), folder / "step-000000000015") << "it got its name, `latest` was not written";
  std::filesystem::remove(folder / "latest");
  EXPECT_EQ(find_checkpoint(folder.path()), folder / "step-000000000015") << "as the first save would leave it";
  write_small_checkpoint(folder.path(), 5);
  EXPECT_EQ(find_checkpoint(folder.path()), folder / "step-000000000005");
}

// The first ends between the checkpoint's name and `latest`, the second before its checkpoint has a name.
TEST(StateFolder, TheNewestStaysThatAfterTwoSavesThatEnded) {
  const TemporaryFolder folder;
  write_small_checkpoint(folder.path(), 1);
  std::filesystem::copy(folder / "step-000000000001", folder / "step-000000000002");
  for (const bool joins : {false, true}) {
    write_text(folder / "latest", "step-000000000001\n");
    write_text(folder / "next", promise_of(folder.path(), "step-000000000002"));
    std::optional<FolderLock> lock =
        joins ? join_step(folder.path(), "partial-step-000000000003.00000000") : std::nullopt;
    if (!joins) begin_step(folder.path(), 3, lock.emplace(folder.path()));
    EXPECT_EQ(find_checkpoint(folder.path()), folder / "step-000000000002");
    EXPECT_FALSE(std::filesystem::exists(folder / "next")) << "of which the next save writes another";
  }
}

// The first run wrote 30 and 40, and was rewound to 20; the save of its own 30 ends before it has the name.
TEST(StateFolder, WhatAnAbandonedRunWroteDoesNotComeBackByTheNameOfANewOne) {
  const TemporaryFolder folder;
  for (const int64_t step : {30, 40, 20}) write_small_checkpoint(folder.path(), step);
  const auto status = status_of_process([&] {
    on_fault_point = [](const char* place) {
      if (std::string_view(place) == "checkpoint promised") _exit(7);
    };
    write_small_checkpoint(folder.path(), 30, std::nullopt, R"({"epoch": 4})");
  });
  ASSERT_EQ(WEXITSTATUS(status), 7);
  EXPECT_TRUE(std::filesystem::exists(folder / "next"));
  EXPECT_EQ(find_checkpoint(folder.path()), folder / "step-000000000020");
  {
    const FolderLock lock(folder.path());
    begin_step(folder.path(), 30, lock);
    abandon_step(folder.path(), 30, lock);
  }
  EXPECT_EQ(find_checkpoint(folder.path()), folder / "step-000000000020");
}

TEST(StateFolder, ThoseBeforeTheNewestAreRemoved) {
  const TemporaryFolder folder;
  for (const int64_t step : {1, 2, 3}) write_small_checkpoint(folder.path(), step, 2);
  EXPECT_THAT(complete_steps(folder.path()), ElementsAre(2, 3));
  write_small_checkpoint(folder.path(), 1, 2);
  EXPECT_THAT(complete_steps(folder.path()), ElementsAre(1, 3)) << "the one that was just written stays";
  EXPECT_THAT(incomplete_names(folder.path()), IsEmpty());
}

TEST(StateFolder, OfTheSameStepIsReplaced) {
  const TemporaryFolder folder;
  write_small_checkpoint(folder.path(), 1);
  put_bytes(folder / "step-000000000001/old", "x");
  write_small_checkpoint(folder.path(), 1);
  EXPECT_FALSE(std::filesystem::exists(folder / "step-000000000001/old"));
  EXPECT_THAT(problems_of(folder.path()), IsEmpty());
}

// A save ends, or cannot go on, when the older one has lost the name and the new one has not got it.
TEST(StateFolder, OfTheSameStepIsThereUntilTheNewOneIs) {
  for (const bool is_killed : {false, true}) {
    const TemporaryFolder folder;
    const auto path = folder / "step-000000000001", replaced = folder / "replaced-step-000000000001";
    write_small_checkpoint(folder.path(), 1);
    put_bytes(path + "/old", "x");
    const auto status = status_of_process([&] {
      on_fault_point = [](const char* place) {
        if (std::string_view(place) == "checkpoint replaced") throw FormatError("no rename");
      };
      if (is_killed)
        on_fault_point = [](const char* place) {
          if (std::string_view(place) == "checkpoint replaced") _exit(7);
        };
      const auto error = format_error_of([&] { write_small_checkpoint(folder.path(), 1); });
      if (error == "no rename") _exit(7);
    });
    ASSERT_EQ(WEXITSTATUS(status), 7);
    const auto place = is_killed ? replaced : path;
    EXPECT_EQ(find_checkpoint(folder.path()), place);
    EXPECT_THAT(places_of(path), ElementsAre(place));
    EXPECT_THAT(complete_steps(folder.path()), ElementsAre(1));
    EXPECT_TRUE(std::filesystem::exists(place + "/old"));
    EXPECT_THAT(problems_of(folder.path()), IsEmpty());
    begin_save(folder.path(), 2);
    EXPECT_THAT(places_of(path), ElementsAre(path)) << "it has its name again";
    EXPECT_TRUE(std::filesystem::exists(path + "/old"));
  }
}

// The save ended before it removed the older one; nothing else is needed of it.
TEST(StateFolder, ThatWasReplacedGoesWithTheNextSave) {
  for (const bool joins : {false, true}) {
    const TemporaryFolder folder;
    const auto path = folder / "step-000000000001";
    write_small_checkpoint(folder.path(), 1);
    std::filesystem::copy(path, folder / "replaced-step-000000000001");
    EXPECT_EQ(find_checkpoint(folder.path()), path);
    if (joins) {
      EXPECT_TRUE(join_step(folder.path(), "partial-step-000000000002.00000000"));
    } else {
      begin_save(folder.path(), 2);
    }
    EXPECT_THAT(places_of(path), ElementsAre(path));
  }
}

TEST(StateFolder, ThatWasNotCompletedIsNoneAndGoesWithTheNextSave) {
  const TemporaryFolder folder;
  {
    const FolderLock lock(folder.path());
    put_bytes(begin_step(folder.path(), 7, lock) + "/model-00000-of-00001.safetensors", "half");
  }
  EXPECT_THAT(complete_steps(folder.path()), IsEmpty());
  EXPECT_THAT(incomplete_names(folder.path()), ElementsAre(StartsWith("partial-step-000000000007.")));
  EXPECT_THAT(format_error_of([&] { find_checkpoint(folder.path()); }), HasSubstr("every save was interrupted"));
  write_small_checkpoint(folder.path(), 8);
  EXPECT_THAT(incomplete_names(folder.path()), IsEmpty());
}

TEST(StateFolder, TwoJobsDoNotWriteToOneFolder) {
  const TemporaryFolder folder;
  const FolderLock lock(folder.path());
  EXPECT_THAT(format_error_of([&] { FolderLock other(folder.path()); }),
              HasSubstr(folder.path() + ": expected no other job that writes checkpoints here, found process " +
                        std::to_string(getpid()) + " on host '" + host_name() + "', which has locked"));
}

// Steps are the same again, smaller, as of runs that were rewound, or larger. Beside the folder, a file has the number of
// the last save that was completed.
TEST(StateFolder, SavingThatIsKilledAtAnyPointLeavesTheLastOneThatWasCompleted) {
  const TemporaryFolder root;
  const auto folder = root / "run", completed = root / "completed";
  int64_t step = 1, save = 1;
  const auto save_one = [&] {
    write_small_checkpoint(folder, step, 2, std::to_string(save));
    write_text(completed, std::to_string(save));
  };
  save_one();
  std::mt19937 random(3);
  for (int trial = 0; trial < 50; ++trial) {
    const auto microseconds = static_cast<useconds_t>(500 + random() % 10000);
    const auto status = status_of_process([&] {
      signal(SIGALRM, SIG_DFL);
      ualarm(microseconds, 0);  // ends it wherever it is
      for (;;) {
        const auto distance = static_cast<int64_t>(random() % 3);  // 0: the same again
        step = random() % 2 == 0 ? step + distance : std::max<int64_t>(step - distance, 0);
        ++save;
        save_one();
      }
    });
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) << status;
    CheckpointReader reader(folder);
    const auto last = std::stoll(text_of_file(completed, 100)), found = std::stoll(reader.manifest().extra);
    EXPECT_GE(last, save);
    EXPECT_TRUE(found == last || found == last + 1) << found << " after " << last << " was completed";
    EXPECT_THAT(problems_of(reader.path()), IsEmpty());
    step = reader.manifest().step;
    save = found;
    write_text(completed, std::to_string(save));
  }
}

}  // namespace
}  // namespace fsdp::state
