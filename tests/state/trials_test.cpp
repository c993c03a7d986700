// Checkpoints in trials: loaded by every world and strategy, damaged, and saved where one cannot save.

#include <gmock/gmock.h>

#include <atomic>
#include <random>

#include "state/format/checkpoint_reader.h"
#include "support/interrupted.h"
#include "support/saved_run.h"

namespace fsdp::test {
namespace {

using state::TemporaryFolder;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

struct Division {
  int world;
  Strategy strategy = Strategy::kFullShard;
  /// Of the replicas; 0: no mesh of two axes.
  int replicas = 0;

  FullyShardOptions options() const {
    FullyShardOptions options{.strategy = strategy};
    if (replicas > 0) options.mesh = init_device_mesh({replicas, world / replicas}, {"replicate", "shard"});
    return options;
  }
  std::string text() const { return c10::str(world, " ranks, ", strategy, ", ", replicas, " replicas"); }
};

std::vector<Division> divisions() {
  std::vector<Division> all;
  for (const int world : worlds_up_to(8)) {
    all.push_back({world});
    all.push_back({world, Strategy::kShardOptimizer});
    all.push_back({world, Strategy::kFullShard, world % 2 == 0 ? 2 : world});
  }
  return all;
}

// A fifth of the pairs; all of them with FSDP_TEST_TRIALS.
TEST(StateTrials, EveryWorldLoadsFromEveryOtherWhateverTheStrategies) {
  const TemporaryFolder folder;
  const auto all = divisions();
  std::vector<WholeState> saved(all.size());
  const auto folder_of = [&](size_t i) { return folder / std::to_string(i); };
  for (size_t i = 0; i < all.size(); ++i)
    run_thread_ranks(all[i].world, [&](int) {
      SavedRun run(all[i].options());
      for (int step = 0; step < 2; ++step) run.train(static_cast<int>(i) + step);
      run.save(folder_of(i), 2);
      saved[i].add(run.rows());
    });
  const auto stride = trials(0) > 0 ? 1 : 5;
  for (size_t i = 0; i < all.size(); ++i)
    run_thread_ranks(all[i].world, [&](int) {
      SavedRun run(all[i].options());
      for (size_t j = i % stride; j < all.size(); j += stride) {
        load_checkpoint(folder_of(j), *run.group, &*run.optimizer);
        EXPECT_EQ(saved[j].difference(run.rows()), "") << all[j].text() << " to " << all[i].text();
      }
    });
}

using Files = std::map<std::string, std::string>;

Files files_below(const std::string& folder) {
  Files files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files[entry.path()] = state::bytes_in_file(entry.path());
  return files;
}

// By path what a file has afterwards; none: it is gone.
using Changes = std::map<std::string, std::optional<std::string>>;

// One change of one file of a checkpoint, or of two; what it was, and the files that it changed.
struct Damage {
  std::string what;
  Changes changed;
};

Damage draw_damage(const Files& files, const std::string& checkpoint, std::mt19937& random) {
  std::vector<std::string> own;
  for (const auto& [path, bytes] : files)
    if (path.starts_with(checkpoint)) own.push_back(path);
  const auto any = files.begin(), path_at = std::next(any, static_cast<ptrdiff_t>(random() % files.size()));
  const auto& path = own[random() % own.size()];
  auto bytes = files.at(path);
  const auto at = random() % bytes.size();
  switch (random() % 9) {
    case 0:
      return {path + " cut at " + std::to_string(at), {{path, bytes.substr(0, at)}}};
    case 1:
      return {path + " grown", {{path, bytes + std::string(1 + random() % 9, static_cast<char>(random()))}}};
    case 2:
      return {path + " changed places with " + path_at->first, {{path, path_at->second}, {path_at->first, bytes}}};
    case 3:
      return {path + " copied from " + path_at->first, {{path, path_at->second}}};
    case 4:
      return {path + " removed", {{path, std::nullopt}}};
    default:
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
      return {path + ": another bit at " + std::to_string(at), {{path, bytes}}};
  }
}

void carry_out(const Changes& changes) {
  for (const auto& [path, bytes] : changes)
    if (bytes)
      state::put_bytes(path, *bytes);
    else
      std::filesystem::remove(path);
}

// A run of two checkpoints, by two ranks; what the newer one has.
void save_two(const std::string& folder, WholeState& newest) {
  run_thread_ranks(2, [&](int) {
    SavedRun run{FullyShardOptions{}};
    for (int step = 0; step < 2; ++step) {
      run.train(step);
      run.save(folder, step + 1);
    }
    newest.add(run.rows());
  });
}

TEST(StateTrials, DamageOfAnyFileIsFoundOrHarmless) {
  const TemporaryFolder folder;
  WholeState newest;
  save_two(folder.path(), newest);
  const auto checkpoint = folder / "step-000000000002";
  const auto files = files_below(folder.path());
  ASSERT_THAT(files, SizeIs(2 * 5 + 2));
  std::mt19937 random(5);
  SavedRun run;
  int found = 0;
  const int number = trials(60);
  for (int trial = 0; trial < number; ++trial) {
    const auto [what, changed] = draw_damage(files, checkpoint, random);
    SCOPED_TRACE(what);
    carry_out(changed);
    const bool is_damaged = std::ranges::any_of(changed, [&](const auto& file) {
      return file.first.starts_with(checkpoint) && files.at(file.first) != file.second;
    });
    EXPECT_EQ(!state::problems_of(checkpoint).empty(), is_damaged);
    try {
      for (auto& parameter : run.net->parameters()) parameter.detach().fill_(NAN);
      const auto loaded = load_checkpoint(checkpoint, *run.net, &*run.optimizer);
      EXPECT_EQ(loaded.step, 2);
      EXPECT_EQ(newest.difference(run.rows()), "");
    } catch (const Error& error) {
      EXPECT_THAT(std::string(error.what_without_backtrace()), HasSubstr(folder.path())) << "says where";
      ++found;
    }
    for (const auto& [name, bytes] : changed) state::put_bytes(name, files.at(name));
  }
  EXPECT_GT(found, number / 2) << "trials that nobody notices show nothing";
}

// What is called step-N is whole: without its manifest it is damaged, not one that is not there.
TEST(StateTrials, ACheckpointWithoutItsManifestIsAnErrorOnEveryRankAndNoEarlierOneIsLoaded) {
  const TemporaryFolder folder;
  WholeState newest;
  save_two(folder.path(), newest);
  for (const int step : {2, 1}) {
    const auto checkpoint = folder / state::name_of_step(step);
    std::filesystem::remove(checkpoint + "/manifest.json");
    for (const auto& path : {folder.path(), checkpoint})
      for (const bool if_any : {false, true})
        run_thread_ranks(2, [&](int) {
          SavedRun run{FullyShardOptions{}};
          std::string found;
          try {
            found = load_checkpoint(path, *run.group, &*run.optimizer, {.if_any = if_any}).path;
          } catch (const Error& error) {
            found = error.what_without_backtrace();
          }
          EXPECT_THAT(found, AllOf(HasSubstr("ranks 0, 1: "), HasSubstr("expected manifest.json, found none"),
                                   HasSubstr(path == checkpoint ? checkpoint : folder / "step-000000000002")));
        });
  }
}

TEST(StateTrials, AFolderThatDisappearsIsAnErrorOnEveryRankAndTrainingGoesOn) {
  const TemporaryFolder folder;
  const auto path = folder / "run";
  std::atomic<int> left = 0, gone = 0;  // collectives of rank 0 until the folder goes; how often it went
  ThreadRanksOptions options;
  options.wrap = [&](std::shared_ptr<Communicator> communicator, int r) -> std::shared_ptr<Communicator> {
    if (r != 0) return communicator;
    return std::make_shared<Interrupted>(std::move(communicator), [&] {
      if (left > 0 && --left == 0) std::filesystem::rename(path, folder / c10::str("gone", ++gone));
    });
  };
  run_thread_ranks(
      2,
      [&](int r) {
        SavedRun run{FullyShardOptions{}};
        // The ranks meet twice each time: when rank 0 has made the folder, and when all have written their files.
        for (const int collective : {1, 2, 3, 4}) {
          SCOPED_TRACE(collective);
          run.train(collective);
          if (r == 0) left = collective;
          // A rank that finds no folder may take it for another host's disk and make one, in which the others find
          // nothing; what it leaves is passed over.
          const auto says = AnyOf(HasSubstr("No such file or directory"), HasSubstr("found none"));
          expect_intact(run, [&] { run.save(path, 1); }, says);
        }
        run.save(path, 2);
      },
      options);
  EXPECT_THAT(state::problems_of(path), IsEmpty());
}

// Inference: the plain program has no process group.
TEST(StateTrials, APlainProgramAndRanksOfAnotherNumberPredictAlike) {
  const TemporaryFolder folder;
  const auto inputs = samples({7, 0, 5}, {5}, torch::kDouble);
  torch::Tensor expected;
  run_thread_ranks(2, [&](int r) {
    SavedRun run{FullyShardOptions{}};
    for (int step = 0; step < 2; ++step) run.train(step);
    run.save(folder.path(), 2);
    const torch::NoGradGuard no_grad;
    const ForwardScope scope(*run.group);
    const auto outputs = run.net->forward(inputs);
    if (r == 0) expected = outputs;
  });
  const torch::NoGradGuard no_grad;
  const SavedRun plain;
  EXPECT_FALSE(torch::equal(plain.net->forward(inputs), expected));
  load_checkpoint(folder.path(), *plain.net);
  EXPECT_TRUE(torch::equal(plain.net->forward(inputs), expected));
  run_thread_ranks(3, [&](int) {
    const torch::NoGradGuard without;
    const SavedRun run{FullyShardOptions{}};
    load_checkpoint(folder.path(), *run.group);
    const ForwardScope scope(*run.group);
    EXPECT_TRUE(torch::equal(run.net->forward(inputs), expected));
  });
}

}  // namespace
}  // namespace fsdp::test
