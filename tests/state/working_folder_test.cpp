// Tests that relative paths are relative to the working directory at the time of the call, wherever the program works
// later.

#include <fsdp/async_save.h>
#include <fsdp/trainer.h>

#include <condition_variable>
#include <mutex>

#include "comm/core/fault_point.h"
#include "state/format/checkpoint_reader.h"
#include "state/trainee.h"

namespace fsdp::test {
namespace {

namespace fs = std::filesystem;

/// Two folders. The program works in the first one until `change` is called.
class Folders {
 public:
  Folders() {
    fs::create_directories(root_ / "first");
    fs::create_directories(root_ / "second");
    fs::current_path(root_ / "first");
  }
  ~Folders() { fs::current_path(before_); }
  Folders(const Folders&) = delete;
  Folders& operator=(const Folders&) = delete;
  void change() const { fs::current_path(root_ / "second"); }
  std::string in_first(const std::string& name) const { return root_ / ("first/" + name); }
  /// Returns true if nothing was written to the folder in which the program works now.
  bool is_second_empty() const { return fs::is_empty(root_ / "second"); }

 private:
  const TemporaryFolder root_;
  const fs::path before_ = fs::current_path();
};

/// As long as the object lives, writers of rows wait.
struct HeldRows {
  static inline std::mutex mutex;
  static inline std::condition_variable changed;
  static inline bool held = false;
  HeldRows() {
    held = true;
    on_fault_point = [](const char* place) {
      std::unique_lock lock(mutex);
      if (std::string_view(place) == "part writing") changed.wait(lock, [] { return !held; });
    };
  }
  ~HeldRows() { on_fault_point = nullptr; }
  static void release() {
    const std::lock_guard lock(mutex);
    held = false;
    changed.notify_all();
  }
};

TEST(WorkingFolder, MayChangeWhileACheckpointIsWritten) {
  const Folders folders;
  const HeldRows held;
  run_ranks(2, [&](SavedRun& run) {
    AsyncSave saving;
    async_save_checkpoint(saving, "runs", *run.group, run.optimizer.get(), {.step = 3});
    barrier();
    if (rank() == 0) {
      folders.change();
      HeldRows::release();
    }
    EXPECT_EQ(error_of([&] { saving.wait(); }), "");
  });
  EXPECT_THAT(state::problems_of(folders.in_first("runs")), IsEmpty());
  EXPECT_TRUE(folders.is_second_empty());
}

TEST(WorkingFolder, MayChangeWhileATrainerTrains) {
  const Folders folders;
  run_thread_ranks(2, [&](int r) {
    Trainer trainer({.save = {.folder = "runs", .every = 1, .keep = std::nullopt}, .resume = "runs"});
    auto model = trainer.shard(alike_small_net());
    optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1));
    trainer.fit(model, optimizer, std::vector<int>{1, 2}, [&](auto& net, int number) {
      barrier();
      if (r == 0) folders.change();
      barrier();
      const Batch batch{number, 0, 2};
      return torch::mse_loss(net(samples(batch, {5}, torch::kFloat)), samples(batch, {3}, torch::kFloat));
    });
  });
  EXPECT_THAT(state::complete_steps(folders.in_first("runs")), ElementsAre(1, 2));
  EXPECT_TRUE(folders.is_second_empty());
}

TEST(WorkingFolder, MayChangeBeforeRowsGetTheirMemoryOnDisk) {
  const Folders folders;
  fs::create_directory("rows");
  run_thread_ranks(2, [&](int r) {
    const auto net = meta_init([] { return std::make_shared<SmallNetImpl>(); });
    const auto model = shard_blocks(*net, {.disk_policy = DiskOffloadPolicy{.folder = "rows"}});
    barrier();
    if (r == 0) folders.change();
    barrier();
    EXPECT_EQ(error_of([&] { to_empty(model, torch::kCPU); }), "");
    EXPECT_THAT(state::bytes_in_file("/proc/self/maps"), HasSubstr(folders.in_first("rows/"))) << "where rows lie";
  });
}

}  // namespace
}  // namespace fsdp::test
