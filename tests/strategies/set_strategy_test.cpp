// A model that moves to another strategy between steps trains on as if it had had that one from the beginning.

#include <gmock/gmock.h>
#include <malloc.h>

#include "support/small_net.h"

namespace fsdp::test {
namespace {

using testing::HasSubstr;
using torch::Tensor;

constexpr Strategy kAllStrategies[] = {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kShardOptimizer,
                                    Strategy::kReplicate};

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<Tensor>)>;

std::unique_ptr<torch::optim::Optimizer> fused_adamw(std::vector<Tensor> parameters) {
  return std::make_unique<optim::AdamW>(std::move(parameters), torch::optim::AdamWOptions(1e-2).amsgrad(true));
}

// Where a model moves before a step; no mesh: one axis.
struct Move {
  Strategy strategy;
  std::vector<int> mesh = {};
};

struct MovingRun {
  int world = 2;
  std::vector<Move> moves;  // one before each step
  MakeOptimizer optimizer = fused_adamw;
  c10::ScalarType dtype = torch::kFloat;
  bool accumulates = false;  // gradients of two steps
};

// Rank 0's parameters after a step for each of the moves.
std::vector<Tensor> train(const MovingRun& run, bool moves) {
  std::vector<Tensor> trained;
  run_thread_ranks(run.world, [&](int rank) {
    const auto net = build_alike([] { return std::make_shared<SmallNetImpl>(); });
    net->to(run.dtype);
    const auto on_mesh = [](const Move& move) {
      std::optional<DeviceMesh> mesh;
      if (!move.mesh.empty()) mesh = init_device_mesh(move.mesh, {"replicate", "shard"});
      return mesh;
    };
    const auto& first = run.moves.front();
    const auto group = shard_blocks(*net, {.strategy = first.strategy, .mesh = on_mesh(first)});
    const auto optimizer = run.optimizer(net->parameters());
    const auto same = net->head->weight;
    int step = 0;
    for (const auto& move : run.moves) {
      if (moves && step > 0) set_strategy(group, *optimizer, move.strategy, on_mesh(move));
      ForwardScope scope(group);
      const auto loss = small_net_loss(*net, {step, rank * 2, 2});
      scope.close();
      loss.backward();
      if (!run.accumulates || step % 2 == 1) {
        clip_grad_norm_(group, 0.05);
        optimizer->step();
        optimizer->zero_grad();
      }
      ++step;
    }
    EXPECT_TRUE(same.is_same(net->head->weight));
    EXPECT_EQ(local_rows(same).count, same.size(0));
    for (const auto& parameter : net->parameters())
      if (auto whole = full_tensor(parameter); rank == 0) trained.push_back(whole);
  });
  return trained;
}

void expect_same_bits_as_without_moves(const MovingRun& run) {
  const auto expected = train(run, false), found = train(run, true);
  ASSERT_EQ(expected.size(), found.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(torch::equal(expected[i], found[i])) << "parameter " << i;
}

// From each strategy to each other one.
const std::vector<Move> kAllMoves{{Strategy::kFullShard},      {Strategy::kReplicate}, {Strategy::kShardGradOp},
                                  {Strategy::kShardOptimizer}, {Strategy::kFullShard}, {Strategy::kShardOptimizer},
                                  {Strategy::kShardGradOp},    {Strategy::kReplicate}, {Strategy::kShardOptimizer},
                                  {Strategy::kReplicate},      {Strategy::kFullShard}, {Strategy::kShardGradOp},
                                  {Strategy::kFullShard}};

TEST(SetStrategy, TrainsOnToTheSameBits) {
  for (const int world : worlds_up_to(3)) {
    SCOPED_TRACE(c10::str(world, " ranks"));
    expect_same_bits_as_without_moves({.world = world, .moves = kAllMoves});
  }
}

TEST(SetStrategy, MovesGradientsThatAccumulate) {
  expect_same_bits_as_without_moves({.moves = kAllMoves, .accumulates = true});
}

TEST(SetStrategy, MovesOnMeshesAndBetweenThem) {
  std::vector<Move> moves;
  for (const auto strategy : kAllStrategies)
    for (const auto& mesh : std::vector<std::vector<int>>{{2, 2}, {}, {1, 4}, {4, 1}})
      moves.push_back({strategy, mesh});
  // Sums over two axes round otherwise than those over one.
  const MovingRun run{.world = 4, .moves = moves, .dtype = torch::kDouble};
  const auto expected = train(run, false), found = train(run, true);
  ASSERT_EQ(expected.size(), found.size());
  for (size_t i = 0; i < found.size(); ++i) expect_close(expected[i], found[i], 1e-10);
}

template <class Optimizer, class... Options>
MakeOptimizer made_of(Options... options) {
  return [=](std::vector<Tensor> parameters) { return std::make_unique<Optimizer>(std::move(parameters), options...); };
}

TEST(SetStrategy, MovesTheStateOfFlatOptimizersToTheSameBits) {
  const torch::optim::AdamOptions adam(1e-2);
  const std::vector<MakeOptimizer> optimizers{
      made_of<optim::Adam>(adam),
      made_of<optim::RMSprop>(torch::optim::RMSpropOptions(1e-3).eps(1e-4).momentum(0.9).centered(true)),
      made_of<optim::Adagrad>(torch::optim::AdagradOptions(1e-2).initial_accumulator_value(0.1)),
      made_of<optim::Adam>(adam, optim::StateOptions{.state_dtype = torch::kBFloat16, .stochastic_rounding = true})};
  for (size_t i = 0; i < optimizers.size(); ++i) {
    SCOPED_TRACE(c10::str("optimizer ", i));
    expect_same_bits_as_without_moves(
        {.moves = {{Strategy::kFullShard}, {Strategy::kReplicate}, {Strategy::kShardGradOp}},
         .optimizer = optimizers[i]});
  }
}

TEST(SetStrategy, MovesTheStateOfEveryOptimizerThatIsElementByElement) {
  const std::vector<MakeOptimizer> optimizers{
      made_of<optim::SGD>(torch::optim::SGDOptions(0.05).momentum(0.9)),
      made_of<optim::Adadelta>(optim::AdadeltaOptions(1.0)),
      made_of<torch::optim::SGD>(torch::optim::SGDOptions(0.05).momentum(0.9)),
      made_of<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2)),
      made_of<torch::optim::Adam>(torch::optim::AdamOptions(1e-2).amsgrad(true)),
      made_of<torch::optim::RMSprop>(torch::optim::RMSpropOptions(1e-2).momentum(0.9).centered(true)),
      made_of<torch::optim::Adagrad>(torch::optim::AdagradOptions(1e-2))};
  for (size_t i = 0; i < optimizers.size(); ++i) {
    SCOPED_TRACE(c10::str("optimizer ", i));
    // LibTorch's round the last elements of a tensor otherwise than the others.
    const MovingRun run{.moves = {{Strategy::kFullShard}, {Strategy::kReplicate}, {Strategy::kShardGradOp}},
                        .optimizer = optimizers[i],
                        .dtype = torch::kDouble};
    const auto expected = train(run, false), found = train(run, true);
    ASSERT_EQ(expected.size(), found.size());
    for (size_t p = 0; p < found.size(); ++p) expect_close(expected[p], found[p], 1e-10);
  }
}

// What a rank holds, as if it had been sharded so.
TEST(SetStrategy, LeavesEachRankWithWhatTheStrategyHolds) {
  run_thread_ranks(2, [](int) {
    const auto build = [] { return build_alike([] { return std::make_shared<SmallNetImpl>(); }); };
    const auto moved = build();
    const auto group = shard_blocks(*moved);
    const auto optimizer = fused_adamw(moved->parameters());
    for (const auto strategy : {Strategy::kReplicate, Strategy::kFullShard}) {
      set_strategy(group, *optimizer, strategy);
      const auto before = group.stats().rows.current;
      const auto other = build();
      const auto rows = shard_blocks(*other, {.strategy = strategy}).stats();
      EXPECT_EQ(group.stats().rows_numel, rows.rows_numel);
      EXPECT_EQ(rows.rows.current - before, before);
      EXPECT_EQ(group.stats().whole.current, 0);
    }
  });
}

TEST(SetStrategy, OfABlockLeavesTheOthersAndKeepsHooksAndCustomCollectives) {
  run_thread_ranks(2,
                   [](int rank) {
                     const auto net = build_alike([] { return std::make_shared<SmallNetImpl>(); });
                     const auto group = shard_blocks(*net, {.strategy = Strategy::kReplicate});
                     const auto optimizer = fused_adamw(net->parameters());
                     const auto block = group_of(*net->blocks[1]);
                     int gathers = 0, hooks = 0;
                     block.set_all_reduce_hook([&](const Tensor&) { ++hooks; });
                     block.set_custom_all_gather([&](Communicator& ranks, const Tensor& output, const Tensor& input,
                                                     std::span<const int64_t> offsets, Tag tag) {
                       ++gathers;
                       return ranks.all_gather(output, input, offsets, std::move(tag));
                     });
                     const auto step = [&](int number) {
                       ForwardScope scope(group);
                       const auto loss = small_net_loss(*net, {number, rank * 2, 2});
                       scope.close();
                       loss.backward();
                       optimizer->step();
                       optimizer->zero_grad();
                     };
                     step(0);
                     set_strategy(block, *optimizer, Strategy::kShardGradOp);
                     gathers = hooks = 0;
                     step(1);
                     EXPECT_EQ(gathers, 1);
                     EXPECT_EQ(hooks, 1);
                     EXPECT_LT(block.stats().rows_numel, block.stats().parameter_numel);
                     EXPECT_EQ(local_rows(net->head->weight).count, 3) << "another group's";
                   },
                   {.backend = "gloo"});
}

// What a step costs on this rank, by counts and bytes that a strategy decides on.
struct StepCost {
  int64_t gathers = 0, whole_in_scope = 0, whole_after_forward = 0, whole_after_backward = 0, whole_after_step = 0;
  bool operator==(const StepCost&) const = default;
  friend std::ostream& operator<<(std::ostream& out, const StepCost& cost) {
    return out << cost.gathers << " gathers; whole bytes: " << cost.whole_in_scope << " in the scope, "
               << cost.whole_after_forward << " after it, " << cost.whole_after_backward << " after backward, "
               << cost.whole_after_step << " after the step";
  }
};

// A rank counts the bytes of all its models: only of what this one adds.
StepCost cost_of_step(SmallNetImpl& net, const Group& group, torch::optim::Optimizer& optimizer, int64_t others) {
  StepCost cost;
  const auto whole = [&] { return group.stats().whole.current - others; };
  const auto before = group.stats().gathers;
  {
    ForwardScope scope(group);
    const auto loss = small_net_loss(net, {0, rank() * 2, 2});
    cost.whole_in_scope = whole();
    scope.close();
    cost.whole_after_forward = whole();
    loss.backward();
  }
  cost.whole_after_backward = whole();
  optimizer.step();
  optimizer.zero_grad();
  cost.whole_after_step = whole();
  cost.gathers = group.stats().gathers - before;
  return cost;
}

// Of the first step of a model that had another strategy before. Like one that is new, it predicts nothing yet.
StepCost cost_after(Strategy from, Strategy to) {
  const auto net = build_alike([] { return std::make_shared<SmallNetImpl>(); });
  const auto group = shard_blocks(*net, {.strategy = from});
  const auto others = group.stats().whole.current;
  const auto optimizer = fused_adamw(net->parameters());
  if (from != to) {
    cost_of_step(*net, group, *optimizer, others);
    set_strategy(group, *optimizer, to);
  }
  return cost_of_step(*net, group, *optimizer, others);
}

TEST(SetStrategy, CostsWhatTheNewStrategyCosts) {
  run_thread_ranks(2, [](int) {
    for (const auto to : kAllStrategies) {
      const auto expected = cost_after(to, to);
      for (const auto from : kAllStrategies) EXPECT_EQ(cost_after(from, to), expected) << from << " to " << to;
    }
  });
}

// What lies between two parameters in memory is stepped and gathered with them.
TEST(SetStrategy, MovesGradientsWithNothingBetweenThem) {
  mallopt(M_PERTURB, 0x80);  // new memory is full of large numbers
  run_thread_ranks(2,
                   [](int rank) {
                     const auto net = build_alike([] { return std::make_shared<SmallNetImpl>(); });
                     const auto group = shard_blocks(*net, {.strategy = Strategy::kReplicate});
                     optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05));
                     ForwardScope scope(group);
                     const auto loss = small_net_loss(*net, {0, rank * 2, 2});
                     scope.close();
                     loss.backward();
                     set_strategy(group, optimizer, Strategy::kFullShard);
                     optimizer.step();
                     double largest = 0;
                     group.set_custom_all_gather([&](Communicator& ranks, const Tensor& output, const Tensor& input,
                                                     std::span<const int64_t> offsets, Tag tag) {
                       if (input.numel() > 0) largest = std::max(largest, input.abs().max().item<double>());
                       return ranks.all_gather(output, input, offsets, std::move(tag));
                     });
                     const ForwardScope reads(group);
                     small_net_loss(*net, {1, rank * 2, 2});
                     EXPECT_GT(largest, 0);
                     EXPECT_LT(largest, 10);
                   },
                   {.backend = "gloo"});
  mallopt(M_PERTURB, 0);
}

template <class Act>
std::string usage_error_of(const Act& act) {
  try {
    act();
  } catch (const UsageError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(SetStrategy, IsRefusedWhereItWouldLoseSomething) {
  run_thread_ranks(2, [](int) {
    const auto net = build_alike([] { return std::make_shared<SmallNetImpl>(); });
    const auto group = shard_blocks(*net);
    const auto optimizer = fused_adamw(net->parameters());
    const auto refusal = [&](torch::optim::Optimizer& of, std::optional<DeviceMesh> mesh = {}) {
      return usage_error_of([&] { set_strategy(group, of, Strategy::kReplicate, mesh); });
    };
    const auto forward = [&] {
      const ForwardScope scope(group);
      const auto loss = small_net_loss(*net, {0, 0, 2});
      EXPECT_THAT(refusal(*optimizer), HasSubstr("a scope, a backward or a LocalRows open"));
      return loss;
    };
    const auto loss = forward();
    {
      const auto local = group.no_sync();
      loss.backward();
    }
    EXPECT_THAT(refusal(*optimizer), HasSubstr("wait for their reduction"));
    group.reset_iter_state();
    {
      const LocalRows rows(group);
      EXPECT_THAT(refusal(*optimizer), HasSubstr("a scope, a backward or a LocalRows open"));
    }
    const auto some = fused_adamw(net->head->parameters());
    EXPECT_THAT(refusal(*some), HasSubstr("is not the optimizer's"));
    auto lbfgs = optim::LBFGS(net->parameters(), torch::optim::LBFGSOptions(1e-3).max_iter(1));
    lbfgs.step([&] {
      lbfgs.zero_grad();
      auto value = forward();
      value.backward();
      return value;
    });
    EXPECT_THAT(refusal(lbfgs), HasSubstr("has state of an optimizer that is not element by element"));
    auto leaf = torch::ones({1}, torch::requires_grad());
    const auto elsewhere = leaf * 2;
    elsewhere.register_hook(
        [&](const Tensor&) { EXPECT_THAT(refusal(*optimizer), HasSubstr("a scope, a backward or a LocalRows open")); });
    elsewhere.backward();
    const auto alone = default_process_group()->split({{0}, {1}}, "alone");
    EXPECT_THAT(refusal(*optimizer, init_device_mesh({}, {}, alone)),
                HasSubstr("expected a mesh of the model's 2 ranks"));
    set_strategy(group, *optimizer, Strategy::kReplicate);
    forward().backward();
    optimizer->step();
  });
}

TEST(SetStrategy, IsRefusedWhereTheOptimizerHasStateFromBeforeSharding) {
  run_thread_ranks(2, [](int) {
    const auto net = build_alike([] { return std::make_shared<SmallNetImpl>(); });
    const auto optimizer = made_of<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2))(net->parameters());
    small_net_loss(*net, {0, 0, 2}).backward();
    optimizer->step();
    optimizer->zero_grad();
    const auto group = shard_blocks(*net);
    EXPECT_THAT(usage_error_of([&] { set_strategy(group, *optimizer, Strategy::kReplicate); }),
                HasSubstr("expected those of this rank's rows"));
  });
}

TEST(SetStrategy, LeavesTheModelAsItWasIfItThrowsOnTheWay) {
  run_thread_ranks(2,
                   [](int rank) {
                     const auto net = build_alike([] { return std::make_shared<SmallNetImpl>(); });
                     const auto group = shard_blocks(*net);
                     const auto optimizer = fused_adamw(net->parameters());
                     bool fails = false;
                     group_of(*net->blocks[1])
                         .set_custom_all_gather([&](Communicator& ranks, const Tensor& output, const Tensor& input,
                                                    std::span<const int64_t> offsets, Tag tag) {
                           if (fails) throw std::runtime_error("the user's own");
                           return ranks.all_gather(output, input, offsets, std::move(tag));
                         });
                     const auto step = [&](int number) {
                       ForwardScope scope(group);
                       const auto loss = small_net_loss(*net, {number, rank * 2, 2});
                       scope.close();
                       loss.backward();
                       optimizer->step();
                       optimizer->zero_grad();
                     };
                     step(0);
                     std::vector<Tensor> before;
                     for (const auto& parameter : net->parameters()) before.push_back(full_tensor(parameter));
                     const auto rows = group.stats();
                     fails = true;
                     EXPECT_THROW(set_strategy(group, *optimizer, Strategy::kReplicate), std::runtime_error);
                     fails = false;
                     EXPECT_EQ(group.stats().rows_numel, rows.rows_numel);
                     EXPECT_EQ(group.stats().rows.current, rows.rows.current);
                     EXPECT_EQ(group.stats().whole.current, 0);
                     const auto parameters = net->parameters();
                     for (size_t i = 0; i < before.size(); ++i)
                       EXPECT_TRUE(before[i].equal(full_tensor(parameters[i])));
                     step(1);
                     set_strategy(group, *optimizer, Strategy::kReplicate);
                     step(2);
                   },
                   {.backend = "gloo"});
}

TEST(SetStrategy, IsAMismatchWhereRanksAskForDifferentOnesOrHaveOtherState) {
  for (const auto* differs : {"strategy", "gradients", "state"}) {
    SCOPED_TRACE(differs);
    run_thread_ranks(2, [&](int rank) {
      const auto net = build_alike([] { return std::make_shared<SmallNetImpl>(); });
      const auto group = shard_blocks(*net);
      const auto optimizer = fused_adamw(net->parameters());
      const auto weight = net->head->weight;
      auto strategy = Strategy::kReplicate;
      if (rank == 0 && differs == std::string("strategy")) strategy = Strategy::kShardGradOp;
      if (rank == 0 && differs == std::string("gradients")) weight.mutable_grad() = torch::zeros_like(weight);
      if (rank == 0 && differs == std::string("state")) {
        auto state = std::make_unique<torch::optim::AdamWParamState>();
        state->exp_avg(torch::zeros_like(weight)).exp_avg_sq(torch::zeros_like(weight));
        optimizer->state()[weight.unsafeGetTensorImpl()] = std::move(state);
      }
      EXPECT_THROW(set_strategy(group, *optimizer, strategy), Mismatch);
    });
  }
}

TEST(SetStrategy, EndsViewsAndGraphsFromBefore) {
  run_thread_ranks(2, [](int rank) {
    const auto net = build_alike([] { return std::make_shared<SmallNetImpl>(); });
    const auto group = shard_blocks(*net);
    const auto optimizer = fused_adamw(net->parameters());
    ForwardScope scope(group);
    const auto loss = small_net_loss(*net, {0, rank * 2, 2});
    scope.close();
    const auto view = net->head->weight.detach();
    set_strategy(group, *optimizer, Strategy::kReplicate);
    try {
      view.clone();
      ADD_FAILURE() << "a view of rows that are elsewhere now";
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("or fsdp::set_strategy"));
    }
    try {
      loss.backward();
      ADD_FAILURE() << "a graph that read other memory";
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("forward again after it"));
    }
    group.reset_iter_state();
    EXPECT_EQ(full_tensor(net->head->weight).sizes(), torch::IntArrayRef({3, 11}));
  });
}

}  // namespace
}  // namespace fsdp::test
