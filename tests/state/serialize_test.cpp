// fsdp::save and fsdp::load beside torch::save and torch::load.

#include <fsdp/checkpoint.h>
#include <fsdp/serialize.h>
#include <gmock/gmock.h>

#include <sstream>

#include "support/small_net.h"
#include "state/files.h"

namespace fsdp::test {
namespace {

using state::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::Tensor;

// A tied weight, a frozen scalar and a buffer beside layers of every size.
std::shared_ptr<SmallNetImpl> archived_net(double factor = 1) {
  return build_alike([=] {
    auto net = std::make_shared<SmallNetImpl>();
    net->register_parameter("scalar", torch::tensor(0.25), /*requires_grad=*/false);
    net->register_parameter("again", net->head->weight);
    net->register_buffer("seen", torch::arange(4));
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) parameter.mul_(factor);
    return net;
  });
}

void expect_same(const torch::nn::Module& expected, const torch::nn::Module& found) {
  for (const auto& parameter : expected.named_parameters())
    EXPECT_TRUE(torch::equal(parameter.value(), found.named_parameters()[parameter.key()])) << parameter.key();
}

TEST(Serialize, AModelsArchiveIsThatOfThePlainOneToTheByte) {
  const auto plain = archived_net();
  std::ostringstream expected;
  torch::save(plain, expected);
  for (const auto& [world, strategy] :
       {std::pair{1, Strategy::kFullShard}, {3, Strategy::kFullShard}, {2, Strategy::kReplicate}}) {
    const TemporaryFolder folder;
    run_thread_ranks(world, [&, of_ranks = strategy](int) {
      const auto net = archived_net();
      save(shard_blocks(*net, {.strategy = of_ranks}), folder / "model.pt");
    });
    EXPECT_EQ(state::bytes_in_file(folder / "model.pt"), expected.str()) << world << strategy;
    auto loaded = archived_net(2);
    torch::load(loaded, folder / "model.pt");
    expect_same(*plain, *loaded);
  }
}

TEST(Serialize, AShardedModelTakesItsRowsOfWhatTorchSaved) {
  const TemporaryFolder folder;
  const auto plain = archived_net();
  torch::save(plain, folder / "model.pt");
  for (const int world : {1, 3})
    run_thread_ranks(world, [&](int) {
      const auto net = archived_net(2);
      const auto group = shard_blocks(*net);
      net->named_buffers()["seen"].zero_();
      load(group, folder / "model.pt");
      for (const auto& parameter : plain->named_parameters())
        EXPECT_TRUE(torch::equal(parameter.value(), full_tensor(net->named_parameters()[parameter.key()])))
            << parameter.key();
      EXPECT_EQ(net->named_buffers()["seen"][3].item<int64_t>(), 3);
    });
  const auto unsharded = archived_net(2);
  load(*unsharded, folder / "model.pt");
  expect_same(*plain, *unsharded);
}

std::string load_error(const auto& load_it) {
  try {
    load_it();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  }
  return {};
}

TEST(Serialize, WhatDoesNotFitChangesNothingOnAnyRank) {
  const TemporaryFolder folder;
  state::put_bytes(folder / "text", "no archive");
  torch::save(build_alike([] { return std::make_shared<SmallNetImpl>(12); }), folder / "other.pt");
  torch::save(torch::ones({2}), folder / "tensor.pt");
  run_thread_ranks(2, [&](int) {
    const auto net = archived_net();
    const auto group = shard_blocks(*net);
    const auto before = full_tensor(net->first->weight);
    EXPECT_THAT(load_error([&] { load(group, folder / "other.pt"); }),
                AllOf(HasSubstr("load: ranks 0, 1: " + folder.path()), HasSubstr("scalar: missing"),
                      HasSubstr("first.weight: has sizes [11, 5], saved were [12, 5]")));
    EXPECT_THAT(load_error([&] { load(group, folder / "tensor.pt"); }), HasSubstr("first.weight: missing"));
    EXPECT_THAT(load_error([&] { load(group, folder / "text"); }), HasSubstr("expected an archive of torch::save"));
    EXPECT_THAT(load_error([&] { load(group, folder / "none"); }), HasSubstr("cannot open the file"));
    EXPECT_THAT(load_error([&] { save(group, folder / "none/model.pt"); }), HasSubstr("rank 0: "));
    EXPECT_TRUE(torch::equal(before, full_tensor(net->first->weight)));
    optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.5));
    EXPECT_THAT(load_error([&] { load(optimizer, folder / "other.pt"); }),
                HasSubstr("expected an archive of torch::save or fsdp::save of the same kind of object"));
    ForwardScope scope(group);
    EXPECT_THROW(save(group, folder / "model.pt"), UsageError);
  });
}

using Optimizers = std::unique_ptr<torch::optim::Optimizer> (*)(std::vector<Tensor>);

template <class Optimizer, class Options>
std::unique_ptr<torch::optim::Optimizer> with(std::vector<Tensor> parameters, const Options& options) {
  return std::make_unique<Optimizer>(std::move(parameters), options);
}

void take_step(SmallNetImpl& net, const std::optional<Group>& group, torch::optim::Optimizer& optimizer, int number,
               int world) {
  optimizer.zero_grad();
  Tensor loss;
  {
    std::optional<ForwardScope> scope;
    if (group) scope.emplace(*group);
    loss = small_net_loss(net, {number, group ? rank() * 2 : 0, group ? 2 : 2 * world});
  }
  loss.backward();
  optimizer.step();
}

// What `from` saved goes on in `to` as in an optimizer that was never saved, sharded or not.
TEST(Serialize, OptimizersGoOnWithWhatThePlainOnesSavedAndTheOtherWayRound) {
  constexpr int kWorld = 3;
  const std::vector<std::pair<Optimizers, Optimizers>> kinds{
      {[](std::vector<Tensor> p) { return with<optim::AdamW>(p, torch::optim::AdamWOptions(1e-2).amsgrad(true)); },
       [](std::vector<Tensor> p) { return with<torch::optim::AdamW>(p, torch::optim::AdamWOptions(0.5)); }},
      {[](std::vector<Tensor> p) { return with<optim::SGD>(p, torch::optim::SGDOptions(0.1).momentum(0.9)); },
       [](std::vector<Tensor> p) { return with<torch::optim::SGD>(p, torch::optim::SGDOptions(0.5)); }},
      {[](std::vector<Tensor> p) { return with<torch::optim::RMSprop>(p, torch::optim::RMSpropOptions(1e-3)); },
       [](std::vector<Tensor> p) { return with<torch::optim::RMSprop>(p, torch::optim::RMSpropOptions(0.5)); }},
      {[](std::vector<Tensor> p) { return with<optim::Adam>(p, torch::optim::AdamOptions(1e-2)); },
       [](std::vector<Tensor> p) { return with<torch::optim::Adam>(p, torch::optim::AdamOptions(0.5)); }},
      {[](std::vector<Tensor> p) { return with<optim::Adagrad>(p, torch::optim::AdagradOptions(1e-2)); },
       [](std::vector<Tensor> p) { return with<torch::optim::Adagrad>(p, torch::optim::AdagradOptions(0.5)); }}};
  for (const auto& [make, make_plain] : kinds) {
    const TemporaryFolder folder;
    std::vector<Tensor> after;
    run_thread_ranks(kWorld, [&, make = make](int r) {
      const auto net = build_alike([] { return std::make_shared<SmallNetImpl>(); });
      net->to(torch::kDouble);
      const std::optional<Group> group = shard_blocks(*net);
      const auto optimizer = make(net->parameters());
      for (int i = 0; i < 2; ++i) take_step(*net, group, *optimizer, i, kWorld);
      save(*group, folder / "model.pt");
      save(*optimizer, folder / "optimizer.pt");
      take_step(*net, group, *optimizer, 2, kWorld);
      for (const auto& parameter : net->parameters()) {
        const auto whole = full_tensor(parameter);
        if (r == 0) after.push_back(whole);
      }
    });
    // In a plain program, which saves it again.
    auto plain = std::make_shared<SmallNetImpl>();
    plain->to(torch::kDouble);
    torch::load(plain, folder / "model.pt");
    const auto plain_optimizer = make_plain(plain->parameters());
    torch::load(*plain_optimizer, folder / "optimizer.pt");
    torch::save(*plain_optimizer, folder / "again.pt");
    take_step(*plain, std::nullopt, *plain_optimizer, 2, kWorld);
    for (size_t i = 0; i < after.size(); ++i)
      EXPECT_TRUE(torch::allclose(after[i], plain->parameters()[i], 1e-9, 1e-12)) << i;
    // On other ranks, bit for bit what was saved.
    run_thread_ranks(2, [&, make = make](int) {
      const auto net = build_alike([] { return std::make_shared<SmallNetImpl>(); });
      net->to(torch::kDouble);
      const std::optional<Group> group = shard_blocks(*net);
      load(*group, folder / "model.pt");
      const auto optimizer = make(net->parameters());
      load(*optimizer, folder / "again.pt");
      save(*optimizer, folder / "third.pt");
    });
    auto third = std::make_shared<SmallNetImpl>();
    third->to(torch::kDouble);
    torch::load(third, folder / "model.pt");
    const auto third_optimizer = make_plain(third->parameters());
    torch::load(*third_optimizer, folder / "third.pt");
    take_step(*third, std::nullopt, *third_optimizer, 2, kWorld);
    for (size_t i = 0; i < after.size(); ++i)
      EXPECT_TRUE(torch::equal(plain->parameters()[i], third->parameters()[i])) << i;
  }
}

// torch::optim::Adagrad takes the state of every parameter for granted, ours has it of those that had a gradient.
TEST(Serialize, TorchsAdagradGoesOnFromOursThatNeverSteppedAParameter) {
  const auto options = torch::optim::AdagradOptions(1e-2).initial_accumulator_value(0.1);
  for (const bool is_checkpoint : {false, true}) {
    const TemporaryFolder folder;
    run_thread_ranks(2, [&](int) {
      const auto make = [] {
        auto net = build_alike([] { return std::make_shared<SmallNetImpl>(); });
        net->to(torch::kDouble);
        return net;
      };
      const auto net = make(), other = make();
      const std::optional<Group> group = shard_blocks(*net), other_group = shard_blocks(*other);
      optim::Adagrad ours(net->parameters(), options);
      net->head->weight.set_requires_grad(false);
      take_step(*net, group, ours, 0, 2);
      net->head->weight.set_requires_grad(true);
      EXPECT_FALSE(ours.state().count(net->head->weight.unsafeGetTensorImpl()));
      torch::optim::Adagrad torchs(other->parameters(), torch::optim::AdagradOptions(0.5));
      if (is_checkpoint) {
        save_checkpoint(folder.path(), *group, &ours, {.step = 1});
        load_checkpoint(folder.path(), *other_group, &torchs);
      } else {
        save(*group, folder / "model.pt");
        save(ours, folder / "optimizer.pt");
        load(*other_group, folder / "model.pt");
        load(torchs, folder / "optimizer.pt");
      }
      take_step(*net, group, ours, 1, 2);
      take_step(*other, other_group, torchs, 1, 2);
      for (size_t i = 0; i < net->parameters().size(); ++i) {
        const auto expected = full_tensor(net->parameters()[i]), found = full_tensor(other->parameters()[i]);
        EXPECT_TRUE(torch::allclose(expected, found, 1e-12, 1e-14)) << i;
      }
    });
  }
}

}  // namespace
}  // namespace fsdp::test
