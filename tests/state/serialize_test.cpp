// Tests of fsdp::save and fsdp::load, together with torch::save and torch::load.

#include <sstream>

#include "state/trainee.h"

namespace fsdp::test {
namespace {

TEST(Serialize, AModelsArchiveIsThatOfThePlainOneToTheByte) {
  const auto plain = tied_net();
  std::ostringstream expected;
  torch::save(plain, expected);
  const TemporaryFolder folder;
  const auto path = folder / "model.pt";
  for (const auto& [world, strategy] :
       {std::pair{1, Strategy::kFullShard}, {3, Strategy::kFullShard}, {2, Strategy::kReplicate}}) {
    run_thread_ranks(world, [&, of_ranks = strategy](int) {
      const auto net = tied_net(), other = tied_net(2);
      save(shard_blocks(*net, {.strategy = of_ranks}), path);
      load(shard_blocks(*other, {.strategy = of_ranks}), path);
      expect_same_values(whole_values(*plain), whole_values(*other));
    });
    EXPECT_EQ(state::bytes_in_file(path), expected.str()) << world << strategy;
  }
  const auto unsharded = tied_net(2);
  load(*unsharded, path);
  expect_same_values(whole_values(*plain), whole_values(*unsharded));
}

TEST(Serialize, WhatDoesNotFitChangesNothingOnAnyRank) {
  const TemporaryFolder folder;
  state::put_bytes(folder / "text", "no archive");
  torch::save(build_alike([] { return std::make_shared<SmallNetImpl>(12); }), folder / "other.pt");
  torch::save(torch::ones({2}), folder / "tensor.pt");
  run_thread_ranks(2, [&](int) {
    const auto net = tied_net();
    const auto group = shard_blocks(*net);
    const auto before = full_tensor(net->first->weight);
    EXPECT_THAT(
        error_of([&] { load(group, folder / "other.pt"); }),
        AllOf(HasSubstr("load: ranks 0, 1: " + folder.path()), HasSubstr("scalar: is missing in the checkpoint"),
              HasSubstr("first.weight: has sizes [11, 5]; the checkpoint was saved with [12, 5]")));
    EXPECT_THAT(error_of([&] { load(group, folder / "tensor.pt"); }),
                HasSubstr("first.weight: is missing in the checkpoint"));
    EXPECT_THAT(error_of([&] { load(group, folder / "text"); }), HasSubstr("expected an archive of torch::save"));
    EXPECT_THAT(error_of([&] { load(group, folder / "none"); }), HasSubstr("cannot open the file"));
    EXPECT_THAT(error_of([&] { save(group, folder / "none/model.pt"); }), HasSubstr("rank 0: "));
    EXPECT_TRUE(torch::equal(before, full_tensor(net->first->weight)));
    optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.5));
    EXPECT_THAT(error_of([&] { load(optimizer, folder / "other.pt"); }),
                HasSubstr("expected an archive of torch::save or fsdp::save with the same kind of object"));
    ForwardScope scope(group);
    EXPECT_THROW(save(group, folder / "model.pt"), UsageError);
  });
}

// A plain program that loads what the ranks saved must continue as they did. What it saves must have the same bits
// after other ranks have loaded and saved it.
TEST(Serialize, OptimizersGoOnWithWhatThePlainOnesSavedAndTheOtherWayRound) {
  const std::pair<MakeOptimizer, MakeOptimizer> kinds[] = {
      {amsgrad, [](auto p) { return made<torch::optim::AdamW>(p, torch::optim::AdamWOptions(0.5)); }},
      {[](auto p) { return made<optim::SGD>(p, torch::optim::SGDOptions(0.1).momentum(0.9)); },
       [](auto p) { return made<torch::optim::SGD>(p, torch::optim::SGDOptions(0.5)); }},
      {[](auto p) { return made<torch::optim::RMSprop>(p, torch::optim::RMSpropOptions(1e-3)); },
       [](auto p) { return made<torch::optim::RMSprop>(p, torch::optim::RMSpropOptions(0.5)); }},
      {[](auto p) { return made<optim::Adam>(p, torch::optim::AdamOptions(1e-2)); },
       [](auto p) { return made<torch::optim::Adam>(p, torch::optim::AdamOptions(0.5)); }},
      {[](auto p) { return made<optim::Adagrad>(p, torch::optim::AdagradOptions(1e-2)); },
       [](auto p) { return made<torch::optim::Adagrad>(p, torch::optim::AdagradOptions(0.5)); }}};
  constexpr int kWorld = 3;
  for (const auto& [make, make_plain] : kinds) {
    const TemporaryFolder folder;
    std::vector<Tensor> after;
    run_thread_ranks(kWorld, [&, make = make](int r) {
      SavedRun run(FullyShardOptions{}, make);
      for (int i = 0; i < 2; ++i) run.train(i);
      save(*run.group, folder / "model.pt");
      save(*run.optimizer, folder / "optimizer.pt");
      run.train(2);
      const auto values = run.values();
      if (r == 0) after = values;
    });
    const auto go_on = [&, make_plain = make_plain](const std::string& optimizer) {
      SavedRun plain(make_plain);
      torch::load(plain.net, folder / "model.pt");
      torch::load(*plain.optimizer, folder / optimizer);
      torch::save(*plain.optimizer, folder / "again.pt");
      plain.train(2, kWorld);
      return plain.values();
    };
    const auto plain = go_on("optimizer.pt");
    expect_close_values(after, plain, 1e-9);
    run_thread_ranks(2, [&, make = make](int) {
      SavedRun run(FullyShardOptions{}, make);
      load(*run.group, folder / "model.pt");
      load(*run.optimizer, folder / "again.pt");
      save(*run.optimizer, folder / "third.pt");
    });
    expect_same_values(plain, go_on("third.pt"));
  }
}

// torch::optim::Adagrad requires a state for every parameter; fsdp's has states only for those that had a gradient.
TEST(Serialize, TorchsAdagradGoesOnFromOursThatNeverSteppedAParameter) {
  const MakeOptimizer make_ours = [](auto p) {
    return made<optim::Adagrad>(p, torch::optim::AdagradOptions(1e-2).initial_accumulator_value(0.1));
  };
  const MakeOptimizer make_torchs = [](auto p) {
    return made<torch::optim::Adagrad>(p, torch::optim::AdagradOptions(0.5));
  };
  for (const bool is_checkpoint : {false, true}) {
    const TemporaryFolder folder;
    run_thread_ranks(2, [&](int) {
      SavedRun ours(FullyShardOptions{}, make_ours), torchs(FullyShardOptions{}, make_torchs);
      const auto& head = ours.net->head->weight;
      head.set_requires_grad(false);
      ours.train(0);
      head.set_requires_grad(true);
      EXPECT_FALSE(ours.optimizer->state().count(head.unsafeGetTensorImpl()));
      if (is_checkpoint) {
        ours.save(folder.path(), 1);
        torchs.load(folder.path());
      } else {
        save(*ours.group, folder / "model.pt");
        save(*ours.optimizer, folder / "optimizer.pt");
        load(*torchs.group, folder / "model.pt");
        load(*torchs.optimizer, folder / "optimizer.pt");
      }
      ours.train(1);
      torchs.train(1);
      expect_close_values(ours.values(), torchs.values(), 1e-12);
    });
  }
}

}  // namespace
}  // namespace fsdp::test
