// fsdp::save and fsdp::load beside torch::save and torch::load.

#include <sstream>

#include "state/trainee.h"

namespace fsdp::test {
namespace {

TEST(Serialize, AModelsArchiveIsThatOfThePlainOneToTheByte) {
  const auto plain = tied_net();
  std::ostringstream expected;
  torch::save(plain, expected);
  for (const auto& [world, strategy] :
       {std::pair{1, Strategy::kFullShard}, {3, Strategy::kFullShard}, {2, Strategy::kReplicate}}) {
    const TemporaryFolder folder;
    run_thread_ranks(world, [&, of_ranks = strategy](int) {
      const auto net = tied_net();
      save(shard_blocks(*net, {.strategy = of_ranks}), folder / "model.pt");
    });
    EXPECT_EQ(state::bytes_in_file(folder / "model.pt"), expected.str()) << world << strategy;
    auto loaded = tied_net(2);
    torch::load(loaded, folder / "model.pt");
    expect_same_values(whole_values(*plain), whole_values(*loaded));
  }
}

TEST(Serialize, AShardedModelTakesItsRowsOfWhatTorchSaved) {
  const TemporaryFolder folder;
  const auto plain = tied_net();
  torch::save(plain, folder / "model.pt");
  for (const int world : {1, 3})
    run_thread_ranks(world, [&](int) {
      const auto net = tied_net(2);
      load(shard_blocks(*net), folder / "model.pt");
      expect_same_values(whole_values(*plain), whole_values(*net));
    });
  const auto unsharded = tied_net(2);
  load(*unsharded, folder / "model.pt");
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
    EXPECT_THAT(error_of([&] { load(group, folder / "other.pt"); }),
                AllOf(HasSubstr("load: ranks 0, 1: " + folder.path()), HasSubstr("scalar: missing"),
                      HasSubstr("first.weight: has sizes [11, 5], saved were [12, 5]")));
    EXPECT_THAT(error_of([&] { load(group, folder / "tensor.pt"); }), HasSubstr("first.weight: missing"));
    EXPECT_THAT(error_of([&] { load(group, folder / "text"); }), HasSubstr("expected an archive of torch::save"));
    EXPECT_THAT(error_of([&] { load(group, folder / "none"); }), HasSubstr("cannot open the file"));
    EXPECT_THAT(error_of([&] { save(group, folder / "none/model.pt"); }), HasSubstr("rank 0: "));
    EXPECT_TRUE(torch::equal(before, full_tensor(net->first->weight)));
    optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.5));
    EXPECT_THAT(error_of([&] { load(optimizer, folder / "other.pt"); }),
                HasSubstr("expected an archive of torch::save or fsdp::save of the same kind of object"));
    ForwardScope scope(group);
    EXPECT_THROW(save(group, folder / "model.pt"), UsageError);
  });
}

// What ranks saved goes on in a plain program as in the optimizer that was never saved, and what that saves on other
// ranks, bit for bit.
TEST(Serialize, OptimizersGoOnWithWhatThePlainOnesSavedAndTheOtherWayRound) {
  struct Kind {
    MakeOptimizer make, make_plain;
  };
  constexpr Kind kKinds[] = {
      {[](std::vector<Tensor> p) { return made<optim::AdamW>(p, torch::optim::AdamWOptions(1e-2).amsgrad(true)); },
       [](std::vector<Tensor> p) { return made<torch::optim::AdamW>(p, torch::optim::AdamWOptions(0.5)); }},
      {[](std::vector<Tensor> p) { return made<optim::SGD>(p, torch::optim::SGDOptions(0.1).momentum(0.9)); },
       [](std::vector<Tensor> p) { return made<torch::optim::SGD>(p, torch::optim::SGDOptions(0.5)); }},
      {[](std::vector<Tensor> p) { return made<torch::optim::RMSprop>(p, torch::optim::RMSpropOptions(1e-3)); },
       [](std::vector<Tensor> p) { return made<torch::optim::RMSprop>(p, torch::optim::RMSpropOptions(0.5)); }},
      {[](std::vector<Tensor> p) { return made<optim::Adam>(p, torch::optim::AdamOptions(1e-2)); },
       [](std::vector<Tensor> p) { return made<torch::optim::Adam>(p, torch::optim::AdamOptions(0.5)); }},
      {[](std::vector<Tensor> p) { return made<optim::Adagrad>(p, torch::optim::AdagradOptions(1e-2)); },
       [](std::vector<Tensor> p) { return made<torch::optim::Adagrad>(p, torch::optim::AdagradOptions(0.5)); }}};
  constexpr int kWorld = 3;
  for (const auto& [make, make_plain] : kKinds) {
    const TemporaryFolder folder;
    std::vector<Tensor> after;
    run_thread_ranks(kWorld, [&, make = make](int r) {
      Trainee trainee(FullyShardOptions{}, make);
      for (int i = 0; i < 2; ++i) trainee.step(i);
      save(*trainee.group, folder / "model.pt");
      save(*trainee.optimizer, folder / "optimizer.pt");
      trainee.step(2);
      const auto values = trainee.values();
      if (r == 0) after = values;
    });
    const auto go_on = [&, make_plain = make_plain](const std::string& optimizer) {
      Trainee plain(make_plain);
      torch::load(plain.net, folder / "model.pt");
      torch::load(*plain.optimizer, folder / optimizer);
      torch::save(*plain.optimizer, folder / "again.pt");
      plain.step(2, kWorld);
      return plain.values();
    };
    const auto plain = go_on("optimizer.pt");
    ASSERT_EQ(plain.size(), after.size());
    for (size_t i = 0; i < after.size(); ++i) EXPECT_TRUE(torch::allclose(after[i], plain[i], 1e-9, 1e-12)) << i;
    run_thread_ranks(2, [&, make = make](int) {
      Trainee trainee(FullyShardOptions{}, make);
      load(*trainee.group, folder / "model.pt");
      load(*trainee.optimizer, folder / "again.pt");
      save(*trainee.optimizer, folder / "third.pt");
    });
    expect_same_values(plain, go_on("third.pt"));
  }
}

// torch::optim::Adagrad takes the state of every parameter for granted, ours has it of those that had a gradient.
TEST(Serialize, TorchsAdagradGoesOnFromOursThatNeverSteppedAParameter) {
  const MakeOptimizer make_ours = [](std::vector<Tensor> p) {
    return made<optim::Adagrad>(p, torch::optim::AdagradOptions(1e-2).initial_accumulator_value(0.1));
  };
  const MakeOptimizer make_torchs = [](std::vector<Tensor> p) {
    return made<torch::optim::Adagrad>(p, torch::optim::AdagradOptions(0.5));
  };
  for (const bool is_checkpoint : {false, true}) {
    const TemporaryFolder folder;
    run_thread_ranks(2, [&](int) {
      Trainee ours(FullyShardOptions{}, make_ours), torchs(FullyShardOptions{}, make_torchs);
      const auto& head = ours.net->head->weight;
      head.set_requires_grad(false);
      ours.step(0);
      head.set_requires_grad(true);
      EXPECT_FALSE(ours.optimizer->state().count(head.unsafeGetTensorImpl()));
      if (is_checkpoint) {
        ours.save(folder.path(), {.step = 1});
        torchs.load(folder.path());
      } else {
        save(*ours.group, folder / "model.pt");
        save(*ours.optimizer, folder / "optimizer.pt");
        load(*torchs.group, folder / "model.pt");
        load(*torchs.optimizer, folder / "optimizer.pt");
      }
      ours.step(1);
      torchs.step(1);
      const auto expected = ours.values(), found = torchs.values();
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(torch::allclose(expected[i], found[i], 1e-12, 1e-14)) << i;
    });
  }
}

}  // namespace
}  // namespace fsdp::test
