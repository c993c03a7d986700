// Tests of saves that are killed at random points, and of saves to disks that are full or read-only.

#include <fsdp/process_group.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/time.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <iostream>
#include <random>

#include "process/ranks.h"
#include "state/format/checkpoint_reader.h"
#include "support/saved_run.h"

namespace fsdp::test {
namespace {

using state::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

int number_in(const char* variable) { return std::atoi(std::getenv(variable)); }

// Kills this process after `microseconds`, wherever its threads are by then.
void die_after(int microseconds) {
  signal(SIGALRM, SIG_DFL);
  const itimerval timer{.it_interval = {}, .it_value = {microseconds / 1'000'000, microseconds % 1'000'000}};
  setitimer(ITIMER_REAL, &timer, nullptr);
}

// Draws the same next step on every rank: the same step again, a smaller one, as after a rewind, or a larger one.
int64_t draw_step(int64_t before, int64_t save) {
  std::mt19937 random(static_cast<unsigned>(save));
  const auto distance = static_cast<int64_t>(1 + random() % 3);
  switch (random() % 3) {
    case 0:
      return before;
    case 1:
      return std::max<int64_t>(before - distance, 0);
    default:
      return before + distance;
  }
}

// Every parameter of a checkpoint holds the number of its save. A file beside the folder holds the number of the last
// completed save.
PROCESS_CASE(save_until_killed) {
  init_process_group({.backend = test_backend()});
  const std::string folder = std::getenv("FOLDER");
  SavedRun run{FullyShardOptions{}};
  run.train(0);
  int64_t step = 0, save = 0;
  const auto save_next = [&] {
    const at::NoGradGuard no_grad;
    step = draw_step(step, ++save);
    for (auto& parameter : run.net->parameters()) parameter.fill_(save);
    save_checkpoint(folder, *run.group, &*run.optimizer, {.step = step, .extra = std::to_string(save), .keep = 2});
    if (rank() == 0) write_text(folder + ".completed", std::to_string(save));
  };
  if (std::filesystem::exists(folder + "/latest")) {
    const auto loaded = load_checkpoint(folder, *run.group, &*run.optimizer);
    step = loaded.step;
    save = std::stoll(loaded.extra);
  } else {
    save_next();
  }
  const int victim = number_in("VICTIM");  // if this is the number of ranks, all ranks die
  barrier();
  if (victim == rank() || victim == world_size()) die_after(number_in("MICROSECONDS"));
  for (;;) save_next();
}

TEST(CheckpointTrials, SavingThatIsKilledAtAnyPointLeavesACheckpointThatLoads) {
  const TemporaryFolder root;
  const auto folder = root / "run";
  std::mt19937 random(11);
  int64_t newest = 0;
  for (int trial = 0; trial < trials(3); ++trial) {
    const int world = 1 + trial % 3, victim = static_cast<int>(random() % static_cast<unsigned>(world + 1));
    const auto microseconds = std::to_string(20'000 + random() % 100'000);
    SCOPED_TRACE(str_cat("trial ", trial, ", ", world, " ranks: VICTIM=", victim, " after ", microseconds, " us"));
    auto ranks = start_ranks("save_until_killed", world,
                             {{"FOLDER", folder}, {"VICTIM", std::to_string(victim)}, {"MICROSECONDS", microseconds}});
    for (int r = 0; r < world; ++r) {
      const bool is_victim = victim == r || victim == world;
      EXPECT_EQ(ranks.wait(r).signal, is_victim ? SIGALRM : 0) << ranks.wait(r).output;
    }
    SavedRun plain;
    const auto loaded = load_checkpoint(folder, *plain.net, &*plain.optimizer);
    EXPECT_GE(std::stoll(loaded.extra), newest);
    newest = std::stoll(loaded.extra);
    const auto completed = std::stoll(text_of_file(folder + ".completed", 100));
    EXPECT_TRUE(newest == completed || newest == completed + 1) << newest << " after " << completed << " was completed";
    write_text(folder + ".completed", std::to_string(newest));
    for (const auto& parameter : plain.net->parameters())
      EXPECT_TRUE(torch::equal(parameter, torch::full_like(parameter, newest)));
    for (const auto step : state::complete_steps(folder))
      for (const auto& place : state::places_of(folder + "/" + state::name_of_step(step)))
        EXPECT_THAT(state::problems_of(place), IsEmpty());
  }
  EXPECT_GT(newest, 0);
}

constexpr char kCannotMount[] = "cannot mount";

// Mounts a memory disk of the size in `options`, visible to this thread and to the threads that it starts.
bool mount_disk(const std::string& path, const std::string& options) {
  if (unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
      mount("tmpfs", path.c_str(), "tmpfs", 0, options.c_str()) == 0)
    return true;
  std::cout << kCannotMount << std::endl;
  return false;
}
void mount_again(const std::string& path, unsigned long flags, const std::string& options) {
  TORCH_CHECK(mount("tmpfs", path.c_str(), "tmpfs", MS_REMOUNT | flags, options.c_str()) == 0, strerror(errno));
}

int64_t bytes_below(const std::string& folder) {
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) bytes += static_cast<int64_t>(entry.file_size() + 4095) / 4096 * 4096;
  return bytes;
}

PROCESS_CASE(save_to_small_disks) {
  const std::string folder = std::getenv("FOLDER"), run_folder = folder + "/run";
  if (!mount_disk(folder, "size=4m")) return;
  run_thread_ranks(2, [&](int r) {
    SavedRun run{FullyShardOptions{}};
    run.train(0);
    run.save(run_folder, 1);
    const auto one = bytes_below(run_folder);
    barrier();
    // Each round leaves room for more of the second checkpoint.
    for (int64_t room = 4096; room < one; room += one / 6) {
      if (r == 0) mount_again(folder, 0, str_cat("size=", one + room));
      barrier();
      expect_intact(run, [&] { run.save(run_folder, 2); }, HasSubstr("No space left on device. Free some space"));
      barrier();  // waits until rank 0 has removed what was written
      EXPECT_THAT(state::complete_steps(run_folder), ElementsAre(1));
      EXPECT_THAT(state::incomplete_names(run_folder), IsEmpty());
      EXPECT_THAT(state::problems_of(run_folder), IsEmpty());
      barrier();
    }
    if (r == 0) mount_again(folder, MS_RDONLY, "size=4m");
    barrier();
    expect_intact(run, [&] { run.save(run_folder, 2); }, HasSubstr("Read-only file system"));
    load_checkpoint(run_folder, *run.group, &*run.optimizer);
    barrier();
    if (r == 0) mount_again(folder, 0, "size=4m");
    barrier();
    run.train(1);
    run.save(run_folder, 2);
    EXPECT_THAT(state::complete_steps(run_folder), ElementsAre(1, 2));
  });
  TORCH_CHECK(!testing::Test::HasFailure());
}

TEST(CheckpointTrials, DisksThatAreFullOrReadOnlyAreErrorsAndTrainingGoesOn) {
  const TemporaryFolder folder;
  auto ranks = start_ranks("save_to_small_disks", 1, {{"FOLDER", folder.path()}});
  const auto& result = ranks.wait(0);
  if (result.output.find(kCannotMount) != std::string::npos) GTEST_SKIP() << "no right to mount a disk";
  EXPECT_EQ(result.exit_code, 0) << result.output;
}

}  // namespace
}  // namespace fsdp::test
