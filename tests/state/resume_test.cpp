// Tests of checkpoints of sharded models, from which training goes on with any number of ranks.

#include <ATen/CPUGeneratorImpl.h>
#include <fsdp/schedulers.h>
#include <torch/optim/schedulers/step_lr.h>

#include "comm/core/text.h"
#include "state/format/checkpoint_reader.h"
#include "state/format/host_name.h"
#include "state/trainee.h"

namespace fsdp::test {
namespace {

struct Shards : Layout {
  int world;

  Shards(int ranks, const Layout& layout = {}) : Layout(layout), world(ranks) {}
  std::string text() const { return c10::str(world, " ranks, ", Layout::text()); }
};

// Strategies and optimizers do not depend on each other, so each one is tried once.
TEST(StateResume, WithTheSameRanksTrainingGoesOnBitForBit) {
  const std::pair<Shards, MakeOptimizer> all[] = {
      {{1}, amsgrad},
      {{3}, [](auto p) { return made<torch::optim::SGD>(p, torch::optim::SGDOptions(0.1).momentum(0.9)); }},
      {{3, {Strategy::kShardOptimizer}}, [](auto p) { return made<optim::Adam>(p, torch::optim::AdamOptions(1e-2)); }},
      {{2, {Strategy::kReplicate}},
       [](auto p) {
         return made<optim::RMSprop>(p, torch::optim::RMSpropOptions(1e-3).eps(1e-4).centered(true).momentum(0.9));
       }},
      {{4, {.mesh = {2, 2}}},
       [](auto p) {
         return made<optim::Adagrad>(p,
                                     torch::optim::AdagradOptions(1e-2).lr_decay(0.1).initial_accumulator_value(0.1));
       }},
      {{3, {.param_dtype = torch::kBFloat16}}, [](auto p) {
         return made<optim::AdamW>(p, torch::optim::AdamWOptions(1e-2),
                                   optim::StateOptions{.state_dtype = torch::kBFloat16, .stochastic_rounding = true});
       }}};
  for (const auto& [shards, make] : all) {
    SCOPED_TRACE(shards.text());
    const TemporaryFolder folder;
    std::vector<Tensor> saved, last;  // of rank 0
    run_thread_ranks(shards.world, [&, shards = shards, make = make](int r) {
      SavedRun run(shards.options(), make), resumed(shards.options(), make);
      for (int step = 0; step < 2; ++step) run.train(step);
      if (r > 0) run.net->named_buffers()["seen"].zero_();
      run.save(folder.path(), {.step = 2, .extra = R"({"epoch": 1})"});
      const auto own = run.values();
      run.train(2);
      const auto own_last = run.values();
      if (r == 0) std::tie(saved, last) = std::pair(own, own_last);
      resumed.train(9);  // creates optimizer state, which loading replaces
      const auto loaded = resumed.load(folder.path());
      EXPECT_EQ(loaded.step, 2);
      EXPECT_EQ(loaded.extra, R"({"epoch":1})");
      EXPECT_THAT(loaded.differing, IsEmpty());
      expect_same_values(saved, resumed.values());
      resumed.train(2);
      expect_same_values(last, resumed.values());
    });
  }
}

TEST(StateResume, StateOfMorePrecisionThanTheRowsKeepsItOnAnyRanks) {
  const TemporaryFolder folder;
  const MakeOptimizer with_float_state = [](auto p) {
    return made<optim::AdamW>(p, torch::optim::AdamWOptions(1e-2), optim::StateOptions{.state_dtype = torch::kFloat});
  };
  WholeState saved;
  for (const int world : {1, 2})
    run_thread_ranks(world, [&](int) {
      SavedRun run(FullyShardOptions{}, with_float_state, torch::kBFloat16);
      if (world == 2) {
        run.load(folder.path());
        EXPECT_EQ(saved.difference(run.rows()), "");
        return;
      }
      for (const auto& parameter : run.net->parameters())
        parameter.mutable_grad() = samples({1, 0, 1}, parameter.sizes().vec(), torch::kBFloat16).squeeze(0);
      run.optimizer->step();
      run.save(folder.path());
      saved.add(run.rows());
      const auto moment = plain_copy(state_dict(*run.optimizer, *run.group)[0].rows);
      EXPECT_EQ(moment.scalar_type(), torch::kFloat);
      EXPECT_FALSE(torch::equal(moment, moment.to(torch::kBFloat16).to(torch::kFloat)));
    });
}

// Each run loads the checkpoints of one or two other runs, or those of all other runs with FSDP_TEST_TRIALS.
TEST(StateResume, AnyRanksStrategyAndMeshLoadWhatAnyOtherSaved) {
  std::vector<Shards> all{{1},
                          {3},
                          {2, {Strategy::kReplicate}},
                          {4, {.mesh = {2, 2}}},
                          {2, {.param_dtype = torch::kBFloat16}},
                          {3, {.strategy = Strategy::kReplicate, .param_dtype = torch::kFloat}},
                          {3, {Strategy::kShardOptimizer}},
                          {2},
                          {3, {.mesh = {3, 1}}}};
  for (const int world : worlds_up_to(8))
    if (world > 3)
      for (const auto& shards :
           {Shards{world}, Shards{world, {Strategy::kShardOptimizer}}, Shards{world, {.mesh = {2, world / 2}}}})
        all.push_back(shards);
  const TemporaryFolder folder;
  const auto folder_of = [&](size_t i) { return folder / std::to_string(i); };
  std::vector<WholeState> saved(all.size());
  const auto load = [&](SavedRun& run, size_t from) {
    run.load(folder_of(from));
    EXPECT_EQ(saved[from].difference(run.rows()), "") << "saved by " << all[from].text();
  };
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(all[i].text());
    run_thread_ranks(all[i].world, [&](int) {
      SavedRun run(all[i].options());
      run.train(static_cast<int>(i));
      run.save(folder_of(i));
      saved[i].add(run.rows());
      for (const size_t distance : {1, 4})
        if (i >= distance) load(run, i - distance);
    });
    ASSERT_THAT(state::problems_of(folder_of(i)), IsEmpty());
    SavedRun plain;
    load(plain, i);
  }
  for (size_t i = 0; trials(0) > 0 && i < all.size(); ++i)
    run_thread_ranks(all[i].world, [&](int) {
      SavedRun run(all[i].options());
      for (size_t j = 0; j < all.size(); ++j) load(run, j);
    });
}

TEST(StateResume, OtherWrappingAndTypesLoadTheSameValues) {
  const TemporaryFolder folder;
  std::vector<Tensor> saved;
  run_ranks(2, [&](SavedRun& run) {
    run.train(0);
    run.save(folder.path());
    const auto values = run.values();
    if (rank() == 0) saved = values;
  });
  run_thread_ranks(3, [&](int) {
    const auto net = build_alike(net_with_seen);
    load_checkpoint(folder.path(), fully_shard(static_cast<torch::nn::Module&>(*net)));
    const auto found = whole_values(*net);
    for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(torch::equal(found[i], saved[i].to(torch::kFloat)));
  });
}

TEST(StateResume, SavingTellsOtherRanksOnlyWhereRowsLie) {
  const TemporaryFolder folder;
  Recorded recorded(3);
  run_ranks(
      3,
      [&](SavedRun& run) {
        const auto& log = recorded.log(rank());
        recorded.clear(rank());
        run.save(folder.path());
        EXPECT_THAT(log.entries("all_gather"), SizeIs(7)) << "lengths and texts of three meetings, lengths of parts";
        EXPECT_LT(log.bytes("all_gather"), 500u) << "what all ranks are told grows with nothing but their number";
        EXPECT_THAT(log.entries("recv"), SizeIs(rank() == 0 ? 2 : 0));
        EXPECT_THAT(log.entries("send"), SizeIs(rank() == 0 ? 0 : 1));
        EXPECT_GT(log.bytes("recv") + log.bytes("send"), 1000u) << "a part of the manifest";
        for (const auto& entry : log.entries()) EXPECT_EQ(entry.subject, "save_checkpoint");
      },
      recorded.options);
}

TEST(StateResume, SchedulersGoOnWhereTheyWere) {
  const TemporaryFolder folder;
  run_ranks(2, [&](SavedRun& run) {
    const auto train = [](SavedRun& of, torch::optim::StepLR& scheduler, int first, int last) {
      for (int i = first; i < last; ++i) {
        of.train(i);
        scheduler.step();
      }
    };
    torch::optim::StepLR scheduler(*run.optimizer, /*step_size=*/3, /*gamma=*/0.5);
    train(run, scheduler, 0, 4);
    run.save(folder.path(),
             {.step = 4, .states = {{"scheduler", rank() == 0 ? state_of(scheduler) : "null"}, {"scaler", "[1.5]"}}});
    train(run, scheduler, 4, 7);

    SavedRun resumed(FullyShardOptions{});
    torch::optim::StepLR other(*resumed.optimizer, 3, 0.5);
    const auto loaded = resumed.load(folder.path());
    EXPECT_EQ(loaded.states.at("scaler"), "[1.5]");
    load_state(other, loaded.states.at("scheduler"));
    train(resumed, other, 4, 7);
    expect_same_values(run.values(), resumed.values());
    EXPECT_EQ(resumed.optimizer->param_groups()[0].options().get_lr(), 1e-2 * 0.25);
    EXPECT_THAT(error_of([&] { load_state(other, "[]"); }), HasSubstr("as fsdp::state_of gives it"));
  });
}

TEST(StateResume, WithoutACheckpointNoneIsLoadedIfThatIsAllowed) {
  const TemporaryFolder folder;
  run_ranks(2, [&](SavedRun& run) {
    const auto path = folder / "run";
    EXPECT_EQ(run.load(path, {.if_any = true}).path, "");
    run.save(path, 7);
    EXPECT_EQ(run.load(path, {.if_any = true}).step, 7);
  });
}

// Returns the error on rank 0. Expects that every rank gets an error, and that its values stay.
std::string error_on_every_rank(int world, const std::function<void(SavedRun&)>& act) {
  std::vector<std::string> errors(static_cast<size_t>(world));
  run_ranks(world, [&](SavedRun& run) {
    const auto before = run.values();
    errors[static_cast<size_t>(rank())] = error_of([&] { act(run); });
    auto after = run.values();
    after.resize(before.size());  // ignores a buffer that `act` adds, which comes last
    expect_same_values(before, after);
  });
  EXPECT_THAT(errors, Each(Not(IsEmpty())));
  return errors[0];
}

TEST(StateResume, WhatDoesNotFitIsListedOnEveryRankAndNothingIsChanged) {
  const TemporaryFolder folder;
  run_thread_ranks(2, [&](int) {
    const auto net = build_alike([] { return std::make_shared<SmallNetImpl>(12); });
    net->to(torch::kDouble);
    net->register_buffer("seen", torch::ones({4}, torch::kDouble));
    net->register_parameter("more", torch::ones({2}));
    save_checkpoint(folder.path(), shard_blocks(*net));
  });
  EXPECT_THAT(error_on_every_rank(2, [&](SavedRun& run) { run.load(folder.path()); }),
              AllOf(HasSubstr("load_checkpoint: ranks 0, 1: " + folder.path()),
                    HasSubstr("more: is in the checkpoint, but the model has no such tensor"),
                    HasSubstr("first.weight: has sizes [11, 5]; the checkpoint was saved with [12, 5]"),
                    HasSubstr("optim.: the checkpoint has no optimizer")));
  EXPECT_THAT(
      error_on_every_rank(1,
                          [&](SavedRun& run) {
                            load_checkpoint(folder.path(), *run.group, nullptr,
                                            {.strict = false, .may_differ = {"first.", "blocks.", "head."}});
                          }),
      AllOf(HasSubstr("entries that differ: 1."),
            HasSubstr("more: is in the checkpoint, but the model has no such tensor"), Not(HasSubstr("first.weight"))));
  run_ranks(2, [&](SavedRun& run) {
    const auto before = run.values();
    EXPECT_THAT(run.load(folder.path(), {.strict = false}).differing, SizeIs(Gt(10u)));
    expect_same_values({before[0]}, {run.values()[0]});
  });
}

TEST(StateResume, AFolderThatCannotBeWrittenToIsNamedOnEveryRank) {
  const TemporaryFolder folder;
  state::put_bytes(folder / "file", "");
  EXPECT_THAT(error_on_every_rank(3, [&](SavedRun& run) { run.save(folder / "file/run"); }),
              AllOf(HasSubstr("save_checkpoint: rank 0: "), HasSubstr("file/run")));
  const state::FolderLock lock(folder.path());
  EXPECT_THAT(error_on_every_rank(2, [&](SavedRun& run) { run.save(folder.path()); }),
              HasSubstr(str_cat(folder.path(), ": another job writes checkpoints to this folder: process ", getpid(),
                                " on host '", state::host_name(), "' has locked")));
  EXPECT_THAT(error_on_every_rank(2, [&](SavedRun& run) { run.load(folder.path()); }),
              HasSubstr("expected a checkpoint, found none"));
}

TEST(StateResume, ASaveThatFailsOnOneRankLeavesTheEarlierCheckpoint) {
  const TemporaryFolder folder;
  run_ranks(2, [&](SavedRun& run) { run.save(folder.path(), 2); });
  const auto error = error_on_every_rank(2, [&](SavedRun& run) {
    if (rank() == 1) run.net->register_buffer("odd", torch::empty({1}, at::kBits8));
    save_checkpoint(folder.path(), *run.net, nullptr, {.step = 3, .extra = rank() == 0 ? "no JSON" : "{}"});
  });
  EXPECT_THAT(error, HasSubstr("rank 0: the manifest cannot be written as JSON"));
  EXPECT_THAT(state::complete_steps(folder.path()), ElementsAre(2));
  EXPECT_THAT(state::incomplete_names(folder.path()), IsEmpty());
  EXPECT_THAT(state::problems_of(folder.path()), IsEmpty());
}

TEST(StateResume, ADamagedFileIsFoundByWhoReadsIt) {
  const TemporaryFolder folder;
  run_ranks(2, [&](SavedRun& run) { run.save(folder.path(), 2); });
  const auto path = folder / "step-000000000002/model-00001-of-00002.safetensors";
  auto bytes = state::bytes_in_file(path);
  bytes.back() ^= 1;
  state::put_bytes(path, bytes);
  run_ranks(2, [&](SavedRun& run) {
    EXPECT_THAT(error_of([&] { load_checkpoint(folder.path(), *run.group); }),
                AllOf(HasSubstr("rank 1: " + path), HasSubstr("expected the checksum")));
  });
}

// A checkpoint named step-N should be whole, so without its manifest it counts as damaged, not as missing.
TEST(StateResume, ACheckpointWithoutItsManifestIsAnErrorOnEveryRankAndNoEarlierOneIsLoaded) {
  const TemporaryFolder folder;
  run_ranks(2, [&](SavedRun& run) {
    for (const int64_t step : {1, 2}) run.save(folder.path(), step);
  });
  const auto newest = folder / state::name_of_step(2);
  for (const int step : {2, 1}) {
    const auto checkpoint = folder / state::name_of_step(step);
    std::filesystem::remove(checkpoint + "/manifest.json");
    for (const auto& path : {folder.path(), checkpoint})
      for (const bool if_any : {false, true})
        EXPECT_THAT(error_on_every_rank(2, [&](SavedRun& run) { run.load(path, {.if_any = if_any}); }),
                    AllOf(HasSubstr("ranks 0, 1: "), HasSubstr("expected manifest.json, found none"),
                          HasSubstr(path == checkpoint ? checkpoint : newest)));
  }
}

TEST(StateResume, MistakesAreUsageErrors) {
  const TemporaryFolder folder;
  run_ranks(2, [&](SavedRun& run) {
    optim::LBFGS lbfgs(run.net->parameters());
    torch::optim::SGD of_others({torch::ones({1})}, 0.1);
    const auto expect_refused = [&](torch::optim::Optimizer* optimizer, const SaveOptions& options = {}) {
      EXPECT_THROW(save_checkpoint(folder.path(), *run.group, optimizer, options), UsageError);
    };
    in_scope(*run.group, [&] { expect_refused(nullptr); });
    expect_refused(&lbfgs);
    expect_refused(&of_others);
    expect_refused(nullptr, {.step = -1});
    expect_refused(nullptr, {.keep = 0});
  });
}

// Thread ranks share the default generator; each rank also has a generator of its own.
TEST(StateResume, TheRandomStateOfEachRankGoesOnWithAsManyRanksAndAnOptimizer) {
  const TemporaryFolder folder;
  const auto draw = [](at::Generator& generator) { return torch::rand({3}, generator); };
  std::vector<Tensor> expected(2);
  run_ranks(2, [&](SavedRun& run) {
    auto own = at::detail::createCPUGenerator(static_cast<uint64_t>(rank()));
    draw(own);
    run.save(folder.path(), {.random_states = {{"mine", own.get_state()}}});
    expected[static_cast<size_t>(rank())] = draw(own);
  });
  run_ranks(2, [&](SavedRun& run) {
    auto own = at::detail::createCPUGenerator(9);
    own.set_state(run.load(folder.path()).random_states.at("mine"));
    EXPECT_TRUE(torch::equal(draw(own), expected[static_cast<size_t>(rank())]));
    EXPECT_THAT(load_checkpoint(folder.path(), *run.group).random_states, IsEmpty()) << "without an optimizer";
  });
  SavedRun run;
  EXPECT_THAT(run.load(folder.path()).random_states, IsEmpty()) << "one rank";
  for (const bool with_optimizer : {false, true}) {
    save_checkpoint(folder.path(), *run.net, run.optimizer.get());
    const auto saved = torch::rand({3});
    torch::manual_seed(99);
    const auto seeded = torch::rand({3});
    torch::manual_seed(99);
    load_checkpoint(folder.path(), *run.net, with_optimizer ? run.optimizer.get() : nullptr);
    EXPECT_TRUE(torch::equal(torch::rand({3}), with_optimizer ? saved : seeded));
  }
  const auto state = at::detail::createCPUGenerator(1).get_state();
  const auto error_for = [&](const std::string& name, const Tensor& given) {
    const auto save = [&] { save_checkpoint(folder.path(), *run.net, nullptr, {.random_states = {{name, given}}}); };
    return error_of<Error>(save);
  };
  EXPECT_THAT(error_for("cpu", state), HasSubstr("random_states['cpu']: the state of the default generator is saved"));
  EXPECT_THAT(error_for("mine", Tensor()), HasSubstr("found an undefined tensor"));
  EXPECT_THAT(error_for("mine", state.view({1, -1})), HasSubstr("found 2 dimensions on cpu"));
}

}  // namespace
}  // namespace fsdp::test
