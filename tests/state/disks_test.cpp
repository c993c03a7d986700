// Tests of checkpoints of hosts that share no disk. A folder stands for each disk.

#include <fsdp/async_save.h>

#include <atomic>
#include <cstdlib>

#include "state/format/checkpoint_reader.h"
#include "state/format/host_name.h"
#include "state/trainee.h"
#include "support/interrupted.h"
#include "support/process_ranks.h"

namespace fsdp::test {
namespace {

namespace fs = std::filesystem;

// The number of each rank's host. Each host's disk is a folder.
using Hosts = std::vector<int>;

struct Disks {
  TemporaryFolder root;

  std::string of_host(int host) const { return root / ("disk" + std::to_string(host) + "/run"); }
  std::string of(const Hosts& hosts) const { return of_host(hosts[static_cast<size_t>(rank())]); }
};

// A run that saves to and loads from the disk of its rank's host.
struct HostRun : SavedRun {
  std::string folder;

  HostRun(const FullyShardOptions& options, std::string its_folder)
      : SavedRun(options), folder(std::move(its_folder)) {}
  void save(int64_t step, std::optional<int64_t> keep = std::nullopt) const {
    SavedRun::save(folder, {.step = step, .keep = keep});
  }
  LoadedCheckpoint load() { return SavedRun::load(folder); }
};

// Runs `act` on each rank with its own run. The backend is Gloo, because ranks of different hosts cannot share memory.
void on_hosts(const Disks& disks, const Hosts& hosts, const std::function<void(HostRun&)>& act,
              const Layout& layout = {}, ThreadRanksOptions options = {}) {
  options.backend = "gloo";
  options.hosts = hosts;
  const auto act_on_rank = [&](int) {
    HostRun run(layout.options(), disks.of(hosts));
    act(run);
  };
  run_thread_ranks(static_cast<int>(hosts.size()), act_on_rank, options);
}

// Trains and saves steps 1 and 2, and keeps the last `keep` checkpoints. Returns the state of step 2.
std::unique_ptr<WholeState> save_on(const Disks& disks, const Hosts& hosts, const Layout& layout = {},
                                    std::optional<int64_t> keep = std::nullopt) {
  auto saved = std::make_unique<WholeState>();
  const auto save = [&](HostRun& run) {
    for (const int step : {1, 2}) {
      run.train(step);
      run.save(step, keep);
    }
    saved->add(run.rows());
  };
  on_hosts(disks, hosts, save, layout);
  return saved;
}

void expect_loaded(const WholeState& saved, const Disks& disks, const Hosts& hosts, const Layout& layout = {},
                   const ThreadRanksOptions& options = {}) {
  const auto load = [&](HostRun& run) {
    EXPECT_EQ(run.load().step, 2);
    EXPECT_EQ(saved.difference(run.rows()), "");
  };
  on_hosts(disks, hosts, load, layout, options);
}

TEST(StateDisks, EachHostsPartIsFoundAgainByAnyRanksThatSeeAllDisks) {
  for (const auto& [hosts, layout] : {std::pair<Hosts, Layout>{{0, 1}, {}},
                                         {{0, 0, 1, 1}, {.mesh = {2, 2}}},
                                         {{0, 1}, {Strategy::kReplicate}},
                                         {{0, 1, 2}, {Strategy::kShardOptimizer}}}) {
    SCOPED_TRACE(c10::str(hosts.size(), " ranks, ", layout.text()));
    const Disks disks;
    const auto saved = save_on(disks, hosts, layout, /*keep=*/1);
    size_t files = 0;
    for (int host = 0; host <= hosts.back(); ++host) {
      EXPECT_THAT(state::complete_steps(disks.of_host(host)), ElementsAre(2));
      EXPECT_THAT(state::incomplete_names(disks.of_host(host)), IsEmpty());
      const auto checkpoint = state::find_checkpoint(disks.of_host(host));
      for (const auto& [name, file] : state::read_manifest(checkpoint).files) {
        EXPECT_EQ(file.host, state::host_name());
        files += fs::exists(checkpoint + "/" + name);
      }
    }
    EXPECT_EQ(files, state::read_manifest(state::find_checkpoint(disks.of_host(0))).files.size()) << "each once";
    expect_loaded(*saved, disks, Hosts(hosts.rbegin(), hosts.rend()), {Strategy::kShardGradOp});
    if (hosts.size() == 2) expect_loaded(*saved, disks, {1, 0, 0});
  }
}

TEST(StateDisks, WhatARankSeesIsNotSent) {
  const Disks disks;
  const auto saved = save_on(disks, {0, 1});
  Recorded recorded(2);
  const auto load = [&](HostRun& run) {
    recorded.clear(rank());
    run.load();
    const auto sent = recorded.log(rank()).entries();
    EXPECT_EQ(std::ranges::count_if(sent, [](const auto& entry) { return entry.operation.starts_with("broadcast"); }),
              1)
        << "rank 0's buffer";
    EXPECT_EQ(saved->difference(run.rows()), "");
  };
  on_hosts(disks, {0, 1}, load, {}, recorded.options);
}

TEST(StateDisks, AHostThatComesNewTakesWhatOthersSee) {
  const Disks disks;
  const auto saved = save_on(disks, {0, 0});
  expect_loaded(*saved, disks, {0, 1});
  expect_loaded(*saved, disks, {1, 0});
}

std::vector<std::string> errors_of_load(
    const Disks& disks, const Hosts& hosts, const ThreadRanksOptions& options = {},
    const std::function<void()>& before = [] {}) {
  std::vector<std::string> errors(hosts.size());
  const auto load = [&](HostRun& run) {
    if (rank() == 1) before();
    errors[static_cast<size_t>(rank())] = error_of([&] { run.load(); });
  };
  on_hosts(disks, hosts, load, {}, options);
  return errors;
}

TEST(StateDisks, AbsenceOfAHostsPartIsNamedOnEveryRank) {
  const Disks disks;
  save_on(disks, {0, 0, 1});
  for (const Hosts& hosts : {Hosts{0, 0}, Hosts{0, 2}, Hosts{0}})
    for (const auto& error : errors_of_load(disks, hosts))
      EXPECT_THAT(error, AllOf(HasSubstr("00002-of-00003.safetensors: the file is not on this disk, because the host "
                                         "'" +
                                         state::host_name() + "' wrote it to its own disk"),
                               HasSubstr("step-000000000002")));
}

TEST(StateDisks, ASaveThatEndedBetweenTwoDisksIsNotTheNewest) {
  const Disks disks;
  const auto saved = save_on(disks, {0, 1});
  on_hosts(disks, {0, 1}, [](HostRun& run) { run.save(3); });
  fs::remove_all(disks.of_host(1) + "/step-000000000003");
  expect_loaded(*saved, disks, {0, 1});
  expect_loaded(*saved, disks, {1, 0});
}

TEST(StateDisks, WhoGoesBackToAnOlderCheckpointSetsTheLargerOnesAsideOnAll) {
  const Disks disks;
  save_on(disks, {0, 1});
  on_hosts(disks, {0, 1}, [](HostRun& run) {
    run.save(3);
    run.save(2, /*keep=*/1);
  });
  for (const int host : {0, 1}) {
    EXPECT_THAT(state::complete_steps(disks.of_host(host)), ElementsAre(2));
    EXPECT_TRUE(fs::exists(disks.of_host(host) + "/abandoned-step-000000000003/manifest.json"));
  }
}

TEST(StateDisks, AFailureOnOneLeavesNothingOnAny) {
  const Disks disks;
  const auto saved = save_on(disks, {0, 1});
  on_hosts(disks, {0, 1}, [&](HostRun& run) {
    std::optional<state::FolderLock> other_job;
    if (rank() == 1) other_job.emplace(disks.of_host(1));
    barrier();
    expect_intact(
        run, [&] { run.save(3); },
        AllOf(HasSubstr("rank 1: " + disks.of_host(1)), HasSubstr("another job writes checkpoints to this folder")));
    barrier();
  });
  for (const int host : {0, 1}) {
    EXPECT_THAT(state::complete_steps(disks.of_host(host)), ElementsAre(1, 2));
    EXPECT_THAT(state::incomplete_names(disks.of_host(host)), IsEmpty());
  }
}

std::vector<std::string> names_below(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

// Calls `act` before the rank's `countdown`-th collective, counted from the time at which `countdown` is set.
struct InterruptedRank {
  int rank;
  std::atomic<int> countdown = 0;

  ThreadRanksOptions options(std::function<void()> act) {
    ThreadRanksOptions options;
    options.wrap = [this, act](std::shared_ptr<Communicator> communicator, int r) -> std::shared_ptr<Communicator> {
      if (r != rank) return communicator;
      return std::make_shared<Interrupted>(std::move(communicator), [this, act] {
        if (countdown > 0 && --countdown == 0) act();
      });
    };
    return options;
  }
};

// Host 0 has already named the new checkpoint when host 1 fails to name its own.
TEST(StateDisks, ASaveOfTheSameStepThatEndsBetweenTwoDisksLeavesTheOneThatItReplaces) {
  const Disks disks;
  const Hosts hosts{0, 1};
  const auto saved = save_on(disks, hosts);
  InterruptedRank interrupted{1};
  const auto options = interrupted.options([&] {
    for (const auto& name : state::incomplete_names(disks.of_host(1))) fs::remove_all(disks.of_host(1) + "/" + name);
  });
  const auto save_step_2 = [&](bool fails) {
    const auto save = [&](HostRun& run) {
      // The ranks meet twice each after the folder has been made, after files have been written, and after they have
      // been named.
      if (fails && rank() == 1) interrupted.countdown = 4;
      EXPECT_EQ(error_of([&] { run.save(2); }).empty(), !fails);
    };
    on_hosts(disks, hosts, save, {}, options);
  };
  for (int attempt = 0; attempt < 2; ++attempt) {
    save_step_2(/*fails=*/true);
    expect_loaded(*saved, disks, {1, 0});
    expect_loaded(*saved, disks, {0, 0, 1});
  }
  // This is what host 1's disk looks like if a process ends in the middle of the save.
  fs::rename(disks.of_host(1) + "/step-000000000002", disks.of_host(1) + "/replaced-step-000000000002");
  expect_loaded(*saved, disks, {0, 1});
  save_step_2(/*fails=*/true);
  expect_loaded(*saved, disks, {1, 0});
  save_step_2(/*fails=*/false);
  for (const int host : {0, 1})
    EXPECT_THAT(names_below(disks.of_host(host)),
                UnorderedElementsAre("lock", "latest", "step-000000000001", "step-000000000002"));
  on_hosts(disks, hosts, [&](HostRun& run) {
    run.load();
    EXPECT_NE(saved->difference(run.rows()), "");
  });
}

// After rank 1 has reported the checkpoint, another program on its host, which keeps fewer checkpoints, removes it.
TEST(StateDisks, ACheckpointThatGoesWhileItIsLookedAtIsAnErrorOnEveryRank) {
  const Disks disks;
  save_on(disks, {0, 1});
  InterruptedRank interrupted{1};
  const auto options = interrupted.options([&] { fs::remove_all(disks.of_host(1) + "/step-000000000002"); });
  auto errors = errors_of_load(disks, {0, 1}, options, [&] { interrupted.countdown = 4; });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("load_checkpoint: rank 1: "), HasSubstr("step-000000000002")));
  EXPECT_EQ(errors[0], errors[1].replace(errors[1].find("rank 1"), 6, "rank 0")) << "but for who says it";
}

TEST(StateDisks, AFolderThatDisappearsIsAnErrorOnEveryRankAndTrainingGoesOn) {
  const TemporaryFolder folder;
  const auto path = folder / "run";
  InterruptedRank interrupted{0};
  int gone = 0;
  const auto options = interrupted.options([&] { fs::rename(path, folder / c10::str("gone", ++gone)); });
  run_thread_ranks(
      2,
      [&](int r) {
        SavedRun run{FullyShardOptions{}};
        // The ranks meet twice each after rank 0 has made the folder, and after all ranks have written their files.
        for (const int collective : {1, 2, 3, 4}) {
          SCOPED_TRACE(collective);
          run.train(collective);
          if (r == 0) interrupted.countdown = collective;
          // A rank that finds no folder may assume that it is on another host's disk and make one, in which the other
          // ranks find nothing. Loads ignore such a folder.
          const auto says =
              AnyOf(HasSubstr("No such file or directory"), HasSubstr("found none"), HasSubstr("no longer exists"));
          expect_intact(run, [&] { run.save(path, 1); }, says);
        }
        run.save(path, 2);
      },
      options);
  EXPECT_THAT(state::problems_of(path), IsEmpty());
}

TEST(StateDisks, WaitCompletesWhatIsWrittenMeanwhile) {
  const Disks disks;
  const Hosts hosts{0, 1, 1};
  WholeState saved;
  on_hosts(disks, hosts, [&](HostRun& run) {
    AsyncSave saving;
    for (const int step : {1, 2}) {
      run.train(step);
      async_save_checkpoint(saving, run.folder, *run.group, run.optimizer.get(), {.step = step, .keep = 1});
    }
    saved.add(run.rows());
    run.train(3);
    if (rank() == 0) {
      EXPECT_THAT(state::complete_steps(disks.of_host(0)), ElementsAre(1));
    }
    saving.wait();
    EXPECT_THAT(state::complete_steps(run.folder), ElementsAre(2));
  });
  expect_loaded(saved, disks, hosts);
  for (const int host : {0, 1})
    for (const auto& name : names_below(disks.of_host(host) + "/step-000000000002"))
      EXPECT_TRUE(name == "manifest.json" || name.ends_with(".safetensors")) << name;
}

// Each of two hosts has one process; the second host is lost.
PROCESS_CASE(save_on_hosts_of_their_own) {
  const int own = std::atoi(std::getenv("RANK"));
  setenv("FSDP_HOST", own == 0 ? "one" : "other", /*overwrite=*/1);
  init_process_group({.backend = "gloo"});
  const SavedRun run(FullyShardOptions{});
  run.save(std::string(std::getenv("FSDP_TEST_FOLDER")) + "/" + std::getenv("FSDP_HOST"), 1);
}

TEST(StateDisks, TheNamesOfHostsAreTheirOwn) {
  const TemporaryFolder folder;
  ProcessRanks ranks("save_on_hosts_of_their_own",
                     {.world_size = 2, .environment = {{"FSDP_TEST_FOLDER", folder.path()}}});
  for (const int r : {0, 1}) EXPECT_EQ(ranks.wait(r).exit_code, 0) << ranks.wait(r).output;
  SavedRun plain;
  EXPECT_THAT(error_of([&] { load_checkpoint(folder / "one", *plain.net); }),
              HasSubstr("the host 'other' wrote it to its own disk"));
}

}  // namespace
}  // namespace fsdp::test
