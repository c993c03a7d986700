// Tests of the place in the data at which a Trainer resumes: with other ranks, and with data in a random order.

#include <fsdp/samplers.h>
#include <fsdp/trainer.h>

#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "rewrite.h"
#include "source.h"
#include "state/trainee.h"

namespace fsdp::test {
namespace {

using Samples = std::vector<size_t>;
using SmallModel = Sharded<std::shared_ptr<SmallNetImpl>>;

// Counts how often all ranks together have trained on each sample.
class Seen {
 public:
  void add(const Samples& samples) {
    const std::lock_guard lock(mutex_);
    for (const auto sample : samples) ++times_[sample];
  }
  std::vector<int> times() const {
    std::vector<int> all;
    for (const auto& [sample, times] : times_) all.push_back(times);
    return all;
  }

 private:
  std::mutex mutex_;
  std::map<size_t, int> times_;
};

// Passes over a number of samples on some ranks, in batches of two.
struct Pass {
  int ranks;
  int64_t accumulate = 1;
  std::optional<int64_t> steps = std::nullopt;
};

void train(const Pass& pass, size_t samples, const std::string& resume, const std::string& save, Seen& seen) {
  run_thread_ranks(pass.ranks, [&](int) {
    Trainer trainer({.steps = pass.steps, .accumulate = pass.accumulate, .save = {.folder = save}, .resume = resume});
    auto model = trainer.shard(alike_small_net(torch::kDouble));
    optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-2));
    data::DistributedSampler sampler(samples, {.seed = 1});
    const auto data = [&](int64_t epoch) {
      sampler.set_epoch(static_cast<size_t>(epoch));
      std::vector<Samples> batches;
      while (auto batch = sampler.next(2)) batches.push_back(*batch);
      return batches;
    };
    trainer.fit(model, optimizer, data, [&](SmallModel& net, const Samples& batch) {
      seen.add(batch);
      return net(torch::ones({1, 5}, torch::kDouble)).square().mean();
    });
  });
}

// Changes the manifest of the newest checkpoint in the folder to that of an earlier release, which did not store the
// ranks of a place.
void make_earlier(const std::string& folder) {
  const auto path = state::find_checkpoint(folder);
  auto manifest = state::read_manifest(path);
  auto& place = manifest.states.at("trainer");
  auto json = nlohmann::json::parse(place);
  json.erase("ranks");
  place = json.dump();
  std::erase_if(manifest.training,
                [](const auto& tensor) { return tensor.first.find(".epoch.") != std::string::npos; });
  write_text(path + "/manifest.json", state::manifest_text(manifest));
}

enum class Way { kAsItIs, kResharded, kOfAnEarlierRelease };

// Each of 24 batches is trained on once if the number of ranks divides the batches that were done. Otherwise the last
// batches are trained on twice.
TEST(ResumedPlace, OtherRanksSeeEverySampleOnce) {
  struct Case {
    size_t samples;
    Pass first;
    int then;
    int twice;  // number of batches
  };
  for (const auto& [samples, first, then, twice] : {Case{48, {2, 1, 4}, 4, 0},
                                                    {48, {4, 1, 3}, 2, 0},
                                                    {48, {3, 1, 3}, 1, 0},
                                                    {48, {2, 2, 2}, 4, 0},
                                                    {48, {2, 1, 12}, 4, 0},
                                                    {48, {2, 1, 5}, 3, 1},
                                                    {48, {2, 3, 1}, 4, 2}})
    for (const auto way : {Way::kAsItIs, Way::kResharded, Way::kOfAnEarlierRelease}) {
      SCOPED_TRACE(c10::str(first.ranks, " ranks, ", *first.steps, " steps of ", first.accumulate, ", then ", then,
                            " ranks, way ", static_cast<int>(way)));
      const TemporaryFolder folder;
      Seen seen;
      train(first, samples, "", folder / "first", seen);
      auto resume = folder / "first";
      if (way == Way::kResharded) ckpt::reshard_to(*ckpt::open_source(resume), resume = folder / "other", then, {});
      if (way == Way::kOfAnEarlierRelease) make_earlier(resume);
      train({then}, samples, resume, "", seen);
      const auto times = seen.times();
      EXPECT_THAT(times, SizeIs(samples)) << "none is left out";
      EXPECT_EQ(std::ranges::count(times, 2), 2 * twice);
      EXPECT_EQ(std::ranges::count(times, 1), static_cast<int64_t>(samples) - 2 * twice);
    }
}

// The ranks do not divide the samples of the epoch, so two ranks would count another number of batches in it than four.
TEST(ResumedPlace, AnEpochThatIsOverIsOverForOtherRanks) {
  const TemporaryFolder folder;
  Seen seen;
  train({4, 1, 3}, 19, "", folder.path(), seen);  // the last batch of each rank has one sample
  const auto before = seen.times();
  train({2}, 19, folder.path(), "", seen);
  EXPECT_EQ(seen.times(), before);
}

// An example is two numbers that identify the sample.
struct Numbers : torch::data::Dataset<Numbers> {
  torch::data::Example<> get(size_t number) override {
    const auto value = static_cast<double>(number);
    return {torch::full({5}, value, torch::kDouble), torch::full({3}, value, torch::kDouble)};
  }
  std::optional<size_t> size() const override { return 8; }
};

template <class Sampler>
auto loader_of(Sampler sampler) {
  return torch::data::make_data_loader(Numbers().map(torch::data::transforms::Stack<>()), std::move(sampler), 2);
}

// The samples of a training on one rank, in their order, and its parameters.
struct Done {
  std::vector<double> samples;
  std::vector<Tensor> values;
};

// Trains on to step `steps`. Each of two epochs has four steps. `make_data()` is called as each process would call it.
Done train_drawing(const std::string& folder, int64_t steps, const auto& make_data) {
  Done done;
  run_thread_ranks(1, [&](int) {
    Trainer trainer({.seed = 3, .epochs = 2, .steps = steps, .save = {.folder = folder}, .resume = folder});
    auto model = trainer.shard(alike_small_net(torch::kDouble));
    optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-2));
    trainer.add({.on_epoch_start = [](const TrainingPlace&) { torch::rand({3}); }});
    auto data = make_data();
    trainer.fit(model, optimizer, data, [&](SmallModel& net, const torch::data::Example<>& batch) {
      for (const auto number : {0, 1}) done.samples.push_back(batch.target[number][0].item<double>());
      return torch::mse_loss(torch::dropout(net(batch.data), 0.5, net->is_training()), batch.target);
    });
    done.values = whole_values(*model.module());
  });
  return done;
}

void expect_to_go_on(const auto& make_data) {
  const TemporaryFolder whole, folder;
  const auto expected = train_drawing(whole.path(), 8, make_data);
  std::vector<double> samples;
  Done last;
  for (const int64_t steps : {1, 3, 4, 6, 8}) {
    last = train_drawing(folder.path(), steps, make_data);
    samples.insert(samples.end(), last.samples.begin(), last.samples.end());
  }
  EXPECT_EQ(samples, expected.samples);
  expect_same_values(expected.values, last.values);
}

TEST(ResumedPlace, LibTorchsLoadersGoOnInTheOrderThatTheyDrew) {
  using namespace torch::data::samplers;
  const auto default_loader = [] {
    return torch::data::make_data_loader(Numbers().map(torch::data::transforms::Stack<>()), 2);
  };
  {
    SCOPED_TRACE("the default loader for all epochs");
    expect_to_go_on(default_loader);
  }
  {
    SCOPED_TRACE("the default loader, one for each epoch");
    expect_to_go_on([&] { return [&](int64_t) { return default_loader(); }; });
  }
  {
    SCOPED_TRACE("RandomSampler");
    expect_to_go_on([] { return [](int64_t) { return loader_of(RandomSampler(8)); }; });
  }
  {
    SCOPED_TRACE("DistributedRandomSampler");
    expect_to_go_on([] {
      return [](int64_t epoch) {
        DistributedRandomSampler sampler(8);
        sampler.set_epoch(static_cast<size_t>(epoch));
        return loader_of(sampler);
      };
    });
  }
}

}  // namespace
}  // namespace fsdp::test
