// Checkpoints of sharded models: training goes on from them, on any ranks.

#include <fsdp/checkpoint.h>
#include <fsdp/schedulers.h>
#include <gmock/gmock.h>
#include <torch/optim/schedulers/step_lr.h>

#include "state/format/checkpoint_reader.h"
#include "support/recorded_ranks.h"
#include "support/small_net.h"
#include "state/files.h"

namespace fsdp::test {
namespace {

using state::TemporaryFolder;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using torch::Tensor;

using Optimizers = std::unique_ptr<torch::optim::Optimizer> (*)(std::vector<Tensor>);

std::unique_ptr<torch::optim::Optimizer> flat_adamw(std::vector<Tensor> parameters) {
  return std::make_unique<optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-2).amsgrad(true));
}

std::shared_ptr<SmallNetImpl> small_net(int64_t dim = 11) {
  return build_alike([=] {
    auto net = std::make_shared<SmallNetImpl>(dim);
    net->to(torch::kDouble);
    net->register_buffer("seen", torch::arange(3));
    return net;
  });
}

// What a rank trains, or what a program without ranks does.
struct Trainee {
  std::shared_ptr<SmallNetImpl> net = small_net();
  std::optional<Group> group = std::nullopt;
  std::unique_ptr<torch::optim::Optimizer> optimizer = nullptr;

  explicit Trainee(Optimizers make = flat_adamw) : optimizer(make(net->parameters())) {}
  Trainee(const FullyShardOptions& options, Optimizers make = flat_adamw)
      : group(shard_blocks(*net, options)), optimizer(make(net->parameters())) {}

  void step(int number) {
    optimizer->zero_grad();
    Tensor loss;
    {
      ForwardScope scope(*group);
      loss = small_net_loss(*net, {number, rank() * 2, 2});
    }
    loss.backward();
    optimizer->step();
  }
  // Whole parameters. Collective.
  std::vector<Tensor> values() const {
    std::vector<Tensor> all;
    for (const auto& parameter : net->parameters()) all.push_back(full_tensor(parameter));
    return all;
  }
};

// The same without a group: what a plain program has.
std::vector<Tensor> plain_values(const SmallNetImpl& net) {
  std::vector<Tensor> all;
  for (const auto& parameter : net.parameters()) all.push_back(parameter.detach().clone());
  return all;
}

void expect_equal(const std::vector<Tensor>& expected, const std::vector<Tensor>& found) {
  ASSERT_EQ(expected.size(), found.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(torch::equal(expected[i], found[i])) << "tensor " << i;
}

struct Shards {
  int world;
  Strategy strategy = Strategy::kFullShard;
  std::vector<int> mesh = {};
  std::optional<c10::ScalarType> param_dtype = std::nullopt;

  FullyShardOptions options() const {
    FullyShardOptions options{.strategy = strategy};
    if (param_dtype) options.mp_policy = MixedPrecisionPolicy{.param_dtype = param_dtype};
    if (!mesh.empty()) options.mesh = init_device_mesh(mesh, {"replicate", "shard"});
    return options;
  }
};

// Trains two steps, saves, trains two more; rank 0's values after either.
struct Trained {
  std::vector<Tensor> saved, last;
};
Trained train_and_save(const std::string& folder, const Shards& shards, Optimizers make = flat_adamw) {
  Trained trained;
  run_thread_ranks(shards.world, [&](int r) {
    Trainee trainee(shards.options(), make);
    for (int i = 0; i < 2; ++i) trainee.step(i);
    trainee.net->named_buffers()["seen"].fill_(r + 5);
    save_checkpoint(folder, *trainee.group, trainee.optimizer.get(), {.step = 2, .extra = R"({"epoch": 1})"});
    const auto saved = trainee.values();
    for (int i = 2; i < 4; ++i) trainee.step(i);
    const auto last = trainee.values();
    if (r == 0) trained = {saved, last};
  });
  return trained;
}

template <class Optimizer>
std::unique_ptr<torch::optim::Optimizer> made(const std::vector<Tensor>& parameters, const auto&... options) {
  return std::make_unique<Optimizer>(parameters, options...);
}

const std::vector<Optimizers> kOptimizers{
    flat_adamw,
    [](std::vector<Tensor> p) { return made<torch::optim::SGD>(p, torch::optim::SGDOptions(0.1).momentum(0.9)); },
    [](std::vector<Tensor> p) { return made<optim::Adam>(p, torch::optim::AdamOptions(1e-2)); },
    [](std::vector<Tensor> p) {
      return made<optim::RMSprop>(p, torch::optim::RMSpropOptions(1e-3).eps(1e-4).centered(true).momentum(0.9));
    },
    [](std::vector<Tensor> p) {
      return made<optim::Adagrad>(p, torch::optim::AdagradOptions(1e-2).lr_decay(0.1).initial_accumulator_value(0.1));
    },
    [](std::vector<Tensor> p) {
      return made<optim::AdamW>(p, torch::optim::AdamWOptions(1e-2),
                                optim::StateOptions{.state_dtype = torch::kBFloat16, .stochastic_rounding = true});
    }};

TEST(StateResume, WithTheSameRanksTrainingGoesOnBitForBit) {
  for (const Shards& shards : {Shards{1}, Shards{3}, Shards{3, Strategy::kShardOptimizer},
                               Shards{2, Strategy::kReplicate}, Shards{4, Strategy::kFullShard, {2, 2}},
                               Shards{3, Strategy::kFullShard, {}, torch::kBFloat16}})
    for (const Optimizers make : kOptimizers) {
      SCOPED_TRACE(c10::str(shards.world, " ranks, ", shards.strategy));
      const TemporaryFolder folder;
      const auto trained = train_and_save(folder.path(), shards, make);
      run_thread_ranks(shards.world, [&](int) {
        Trainee trainee(shards.options(), make);
        trainee.step(9);  // state of its own, which goes
        const auto loaded = load_checkpoint(folder.path(), *trainee.group, trainee.optimizer.get());
        EXPECT_EQ(loaded.step, 2);
        EXPECT_EQ(loaded.extra, R"({"epoch":1})");
        EXPECT_THAT(loaded.differing, IsEmpty());
        expect_equal(trained.saved, trainee.values());
        for (int i = 2; i < 4; ++i) trainee.step(i);
        expect_equal(trained.last, trainee.values());
        EXPECT_EQ(trainee.net->named_buffers()["seen"][0].item<int64_t>(), 5) << "rank 0's";
      });
    }
}

TEST(StateResume, StateOfMorePrecisionThanTheRowsKeepsItOnAnyRanks) {
  const TemporaryFolder folder;
  const auto optimizer_of = [](SmallNetImpl& net) {
    return optim::AdamW(net.parameters(), torch::optim::AdamWOptions(1e-2), {.state_dtype = torch::kFloat});
  };
  std::vector<Tensor> saved;
  const auto moments = [](const optim::AdamW& optimizer, const SmallNetImpl& net) {
    std::vector<Tensor> all;
    for (const auto& parameter : net.parameters()) {
      const auto& state = *optimizer.state().at(parameter.unsafeGetTensorImpl());
      all.push_back(static_cast<const torch::optim::AdamWParamState&>(state).exp_avg_sq());
    }
    return all;
  };
  run_thread_ranks(1, [&](int) {
    const auto net = small_net();
    net->to(torch::kBFloat16);
    const auto group = shard_blocks(*net, {});
    auto optimizer = optimizer_of(*net);
    for (const auto& parameter : net->parameters())
      parameter.mutable_grad() = samples({1, 0, 1}, parameter.sizes().vec(), torch::kBFloat16).squeeze(0);
    optimizer.step();
    save_checkpoint(folder.path(), group, &optimizer);
    saved = moments(optimizer, *net);
    EXPECT_EQ(saved[0].scalar_type(), torch::kFloat);
    EXPECT_FALSE(torch::equal(saved[0], saved[0].to(torch::kBFloat16).to(torch::kFloat)));
  });
  run_thread_ranks(2, [&](int) {
    const auto net = small_net();
    net->to(torch::kBFloat16);
    const auto group = shard_blocks(*net, {});
    auto optimizer = optimizer_of(*net);
    load_checkpoint(folder.path(), group, &optimizer);
    const auto found = moments(optimizer, *net);
    for (size_t i = 0; i < found.size(); ++i) {
      const auto rows = local_rows(net->parameters()[i]);
      EXPECT_TRUE(torch::equal(saved[i].narrow(0, rows.first, rows.count), found[i])) << "parameter " << i;
    }
  });
}

// What the checkpoint has of the optimizer, whole.
std::vector<Tensor> moments_in(const std::string& folder) {
  state::CheckpointReader reader(folder);
  std::vector<Tensor> all;
  for (const auto& [name, record] : reader.manifest().training) {
    if (!name.starts_with("optim.")) continue;
    all.push_back(torch::empty(record.sizes, torch::kDouble));
    reader.read_rows(name, record, 0, record.rows(),
                     {static_cast<std::byte*>(all.back().mutable_data_ptr()), all.back().nbytes()});
  }
  return all;
}

TEST(StateResume, AnyRanksStrategyAndMeshLoadWhatAnyOtherSaved) {
  const std::vector<Shards> all{{1},
                                {2},
                                {3},
                                {4, Strategy::kFullShard, {2, 2}},
                                {2, Strategy::kReplicate},
                                {3, Strategy::kShardOptimizer},
                                {2, Strategy::kFullShard, {}, torch::kBFloat16},
                                {3, Strategy::kReplicate, {}, torch::kFloat}};
  for (size_t i = 0; i < all.size(); ++i) {
    const TemporaryFolder folder, again;
    const auto trained = train_and_save(folder.path(), all[i]);
    ASSERT_THAT(state::problems_of(folder.path()), IsEmpty());
    ASSERT_THAT(moments_in(folder.path()), SizeIs(3 * trained.saved.size()));
    for (const size_t step : {1, 2}) {
      const auto& other = all[(i + step) % all.size()];
      SCOPED_TRACE(c10::str(all[i].world, " ranks, ", all[i].strategy, " to ", other.world, ", ", other.strategy));
      run_thread_ranks(other.world, [&](int) {
        Trainee trainee(other.options());
        load_checkpoint(folder.path(), *trainee.group, trainee.optimizer.get());
        expect_equal(trained.saved, trainee.values());
        save_checkpoint(again.path(), *trainee.group, trainee.optimizer.get());
      });
      expect_equal(moments_in(folder.path()), moments_in(again.path()));
    }
    Trainee plain;
    load_checkpoint(folder.path(), *plain.net, plain.optimizer.get());
    expect_equal(trained.saved, plain_values(*plain.net));
  }
}

TEST(StateResume, OtherWrappingAndTypesLoadTheSameValues) {
  const TemporaryFolder folder;
  const auto trained = train_and_save(folder.path(), {2});
  run_thread_ranks(3, [&](int) {
    const auto net = small_net();
    net->to(torch::kFloat);
    const auto group = fully_shard(static_cast<torch::nn::Module&>(*net));
    load_checkpoint(folder.path(), group);
    size_t i = 0;
    for (const auto& parameter : net->parameters())
      EXPECT_TRUE(torch::equal(full_tensor(parameter), trained.saved[i++].to(torch::kFloat)));
  });
}

TEST(StateResume, SavingTellsOtherRanksOnlyWhereRowsLie) {
  const TemporaryFolder folder;
  Recorded recorded(2);
  run_thread_ranks(
      2,
      [&](int r) {
        Trainee trainee(FullyShardOptions{});
        auto& log = recorded.log(r);
        log.clear();
        save_checkpoint(folder.path(), *trainee.group, trainee.optimizer.get());
        EXPECT_THAT(log.entries(), SizeIs(6)) << "lengths and texts of three meetings";
        for (const auto& entry : log.entries()) EXPECT_THAT(entry.subject, AnyOf("save_checkpoint", "Long []"));
      },
      recorded.options);
}

TEST(StateResume, SchedulersGoOnWhereTheyWere) {
  const TemporaryFolder folder;
  run_thread_ranks(2, [&](int r) {
    const auto train = [](Trainee& trainee, torch::optim::StepLR& scheduler, int first, int last) {
      for (int i = first; i < last; ++i) {
        trainee.step(i);
        scheduler.step();
      }
    };
    Trainee trained(FullyShardOptions{});
    torch::optim::StepLR scheduler(*trained.optimizer, /*step_size=*/3, /*gamma=*/0.5);
    train(trained, scheduler, 0, 4);
    save_checkpoint(folder.path(), *trained.group, trained.optimizer.get(),
                    {.step = 4, .states = {{"scheduler", r == 0 ? state_of(scheduler) : "null"}, {"scaler", "[1.5]"}}});
    train(trained, scheduler, 4, 8);

    Trainee resumed(FullyShardOptions{});
    torch::optim::StepLR other(*resumed.optimizer, 3, 0.5);
    const auto loaded = load_checkpoint(folder.path(), *resumed.group, resumed.optimizer.get());
    EXPECT_EQ(loaded.states.at("scaler"), "[1.5]");
    load_state(other, loaded.states.at("scheduler"));
    train(resumed, other, 4, 8);
    expect_equal(trained.values(), resumed.values());
    EXPECT_EQ(resumed.optimizer->param_groups()[0].options().get_lr(), 1e-2 * 0.25);
    try {
      load_state(other, "[]");
      ADD_FAILURE() << "expected an error";
    } catch (const Error& error) {
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr("as fsdp::state_of gives it"));
    }
  });
}

TEST(StateResume, WithoutACheckpointNoneIsLoadedIfThatIsAllowed) {
  const TemporaryFolder folder;
  run_thread_ranks(2, [&](int) {
    Trainee trainee(FullyShardOptions{});
    const auto run = folder / "run";
    EXPECT_EQ(load_checkpoint(run, *trainee.group, trainee.optimizer.get(), {.if_any = true}).path, "");
    save_checkpoint(run, *trainee.group, trainee.optimizer.get(), {.step = 7});
    EXPECT_EQ(load_checkpoint(run, *trainee.group, trainee.optimizer.get(), {.if_any = true}).step, 7);
  });
}

std::string error_on_every_rank(int world, const std::function<void(Trainee&)>& act) {
  std::vector<std::string> errors(static_cast<size_t>(world));
  run_thread_ranks(world, [&](int r) {
    Trainee trainee(FullyShardOptions{});
    const auto before = trainee.values();
    try {
      act(trainee);
    } catch (const Error& error) {
      errors[static_cast<size_t>(r)] = error.what_without_backtrace();
    }
    expect_equal(before, trainee.values());
  });
  for (const auto& error : errors) EXPECT_THAT(error, Not(IsEmpty()));
  return errors[0];
}

TEST(StateResume, WhatDoesNotFitIsListedOnEveryRankAndNothingIsChanged) {
  const TemporaryFolder folder;
  run_thread_ranks(2, [&](int) {
    const auto net = small_net(12);
    net->register_parameter("more", torch::ones({2}));
    save_checkpoint(folder.path(), shard_blocks(*net));
  });
  const auto error = error_on_every_rank(
      2, [&](Trainee& trainee) { load_checkpoint(folder.path(), *trainee.group, trainee.optimizer.get()); });
  EXPECT_THAT(error, AllOf(HasSubstr("load_checkpoint: ranks 0, 1: " + folder.path()),
                           HasSubstr("more: extra, the model has no such tensor"),
                           HasSubstr("first.weight: has sizes [11, 5], saved were [12, 5]"),
                           HasSubstr("optim.: the checkpoint has no optimizer")));
  EXPECT_THAT(error_on_every_rank(1,
                                  [&](Trainee& trainee) {
                                    load_checkpoint(folder.path(), *trainee.group, nullptr,
                                                    {.strict = false, .may_differ = {"first.", "blocks.", "head."}});
                                  }),
              AllOf(HasSubstr("found 1 differences"), HasSubstr("more: extra"), Not(HasSubstr("first.weight"))));
  run_thread_ranks(2, [&](int) {
    Trainee trainee(FullyShardOptions{});
    const auto before = trainee.values();
    const auto loaded = load_checkpoint(folder.path(), *trainee.group, trainee.optimizer.get(), {.strict = false});
    EXPECT_THAT(loaded.differing, SizeIs(Gt(10u)));
    expect_equal({before[0]}, {trainee.values()[0]});
  });
}

TEST(StateResume, AFolderThatCannotBeWrittenToIsNamedOnEveryRank) {
  const TemporaryFolder folder;
  state::put_bytes(folder / "file", "");
  EXPECT_THAT(error_on_every_rank(3, [&](Trainee& trainee) { save_checkpoint(folder / "file/run", *trainee.group); }),
              AllOf(HasSubstr("save_checkpoint: rank 0: "), HasSubstr("file/run")));
  const state::FolderLock lock(folder.path());
  EXPECT_THAT(error_on_every_rank(2, [&](Trainee& trainee) { save_checkpoint(folder.path(), *trainee.group); }),
              HasSubstr("expected no other job that writes checkpoints here"));
  EXPECT_THAT(error_on_every_rank(2, [&](Trainee& trainee) { load_checkpoint(folder.path(), *trainee.group); }),
              HasSubstr("expected a checkpoint, found none"));
}

TEST(StateResume, ASaveThatFailsOnOneRankLeavesTheEarlierCheckpoint) {
  const TemporaryFolder folder;
  train_and_save(folder.path(), {2});
  const auto error = error_on_every_rank(2, [&](Trainee& trainee) {
    if (rank() == 1) trainee.net->register_buffer("odd", torch::zeros({1}, torch::kComplexDouble));
    save_checkpoint(folder.path(), *trainee.net, nullptr, {.step = 3, .extra = rank() == 0 ? "no JSON" : "{}"});
  });
  EXPECT_THAT(error, HasSubstr("rank 0: a manifest cannot have this"));
  EXPECT_THAT(state::complete_steps(folder.path()), ElementsAre(2));
  EXPECT_THAT(state::incomplete_names(folder.path()), IsEmpty());
  EXPECT_THAT(state::problems_of(folder.path()), IsEmpty());
}

TEST(StateResume, ADamagedFileIsFoundByWhoReadsIt) {
  const TemporaryFolder folder;
  train_and_save(folder.path(), {2});
  const auto path = folder / "step-000000000002/model-00001-of-00002.safetensors";
  auto bytes = state::bytes_in_file(path);
  bytes[bytes.size() - 1] ^= 1;
  state::put_bytes(path, bytes);
  run_thread_ranks(2, [&](int) {
    Trainee trainee(FullyShardOptions{});
    try {
      load_checkpoint(folder.path(), *trainee.group);
      ADD_FAILURE() << "expected an error";
    } catch (const Error& error) {
      EXPECT_THAT(error.what_without_backtrace(),
                  AllOf(HasSubstr("rank 1: " + path), HasSubstr("expected the checksum")));
    }
  });
}

TEST(StateResume, MistakesAreUsageErrors) {
  const TemporaryFolder folder;
  run_thread_ranks(2, [&](int) {
    Trainee trainee(FullyShardOptions{});
    {
      ForwardScope scope(*trainee.group);
      EXPECT_THROW(save_checkpoint(folder.path(), *trainee.group), UsageError);
    }
    optim::LBFGS lbfgs(trainee.net->parameters());
    EXPECT_THROW(save_checkpoint(folder.path(), *trainee.group, &lbfgs), UsageError);
    torch::optim::SGD of_others({torch::ones({1})}, 0.1);
    EXPECT_THROW(save_checkpoint(folder.path(), *trainee.group, &of_others), UsageError);
    EXPECT_THROW(save_checkpoint(folder.path(), *trainee.group, nullptr, {.step = -1}), UsageError);
    EXPECT_THROW(save_checkpoint(folder.path(), *trainee.group, nullptr, {.keep = 0}), UsageError);
  });
}

TEST(StateResume, TheRandomStateGoesOn) {
  const TemporaryFolder folder;
  Trainee trainee;
  save_checkpoint(folder.path(), *trainee.net, trainee.optimizer.get());
  const auto expected = torch::rand({3});
  torch::manual_seed(99);
  load_checkpoint(folder.path(), *trainee.net, trainee.optimizer.get());
  EXPECT_TRUE(torch::equal(torch::rand({3}), expected));
}

}  // namespace
}  // namespace fsdp::test
