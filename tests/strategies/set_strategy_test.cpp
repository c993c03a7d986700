// Tests that a model that changes its strategy between steps trains on as if it had used the new one from the
// beginning.

#include <malloc.h>

#include "optim/every_optimizer.h"
#include "strategies/steps.h"

namespace fsdp::test::strategies {
namespace {

using testing::HasSubstr;
using torch::Tensor;

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<Tensor>)>;

template <class Optimizer, class... Options>
MakeOptimizer made_of(Options... options) {
  return [=](std::vector<Tensor> parameters) { return std::make_unique<Optimizer>(std::move(parameters), options...); };
}

const auto kFusedAdamW = made_of<optim::AdamW>(torch::optim::AdamWOptions(1e-2).amsgrad(true));

// The strategy and the mesh to which a model moves before a step.
struct Move {
  Strategy strategy;
  Shape mesh = {};
};

struct MovingRun {
  int world = 2;
  std::vector<Move> moves;  // one before each step
  MakeOptimizer optimizer = kFusedAdamW;
  c10::ScalarType dtype = torch::kFloat;
  bool accumulates = false;  // adds up the gradients of two steps
};

// Returns rank 0's parameters after one step for each move. Without `moves`, the model keeps its first strategy.
std::vector<Tensor> train(const MovingRun& run, bool moves) {
  std::vector<Tensor> trained;
  run_thread_ranks(run.world, [&](int rank) {
    const auto net = make_small_net(11, 1);
    net->to(run.dtype);
    const auto& first = run.moves.front();
    const auto group = shard_blocks(*net, options_for(first.strategy, first.mesh));
    const auto optimizer = run.optimizer(net->parameters());
    const auto same = net->head->weight;
    int step = 0;
    for (const auto& [strategy, mesh] : run.moves) {
      if (moves && step > 0) set_strategy(group, *optimizer, strategy, options_for(strategy, mesh).mesh);
      loss_of_rank(group, *net, step).backward();
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

// Expects the same bits in fp32. In fp64 the runs may sum or step in another order, and so round differently.
void expect_as_without_moves(const MovingRun& run) {
  const auto expected = train(run, false), found = train(run, true);
  ASSERT_EQ(expected.size(), found.size());
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_LE(relative_difference(expected[i], found[i]), run.dtype == torch::kFloat ? 0 : 1e-10) << i;
}

// Contains a move from each strategy to each other one.
const std::vector<Move> kAllMoves{{Strategy::kFullShard},      {Strategy::kReplicate}, {Strategy::kShardGradOp},
                                  {Strategy::kShardOptimizer}, {Strategy::kFullShard}, {Strategy::kShardOptimizer},
                                  {Strategy::kShardGradOp},    {Strategy::kReplicate}, {Strategy::kShardOptimizer},
                                  {Strategy::kReplicate},      {Strategy::kFullShard}, {Strategy::kShardGradOp},
                                  {Strategy::kFullShard}};

TEST(SetStrategy, TrainsOnToTheSameBits) {
  for (const int world : {1, 3}) {
    SCOPED_TRACE(c10::str(world, " ranks"));
    expect_as_without_moves({.world = world, .moves = kAllMoves});
  }
}

TEST(SetStrategy, MovesGradientsThatAccumulate) { expect_as_without_moves({.moves = kAllMoves, .accumulates = true}); }

// Sums over two axes round differently from sums over one.
TEST(SetStrategy, MovesOnMeshesAndBetweenThem) {
  std::vector<Move> moves;
  for (const auto strategy : kStrategies)
    for (const auto& mesh : std::vector<Shape>{{2, 2}, {}, {1, 4}, {4, 1}}) moves.push_back({strategy, mesh});
  expect_as_without_moves({.world = 4, .moves = moves, .dtype = torch::kDouble});
}

TEST(SetStrategy, MovesTheStateOfEveryOptimizerThatIsElementByElement) {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace)
  const std::vector<Move> moves{{Strategy::kFullShard}, {Strategy::kReplicate}, {Strategy::kShardGradOp}};
  // LibTorch's optimizers round the last elements of a tensor differently from the others.
  std::vector<std::pair<std::string, MakeOptimizer>> optimizers{
      {"torch's SGD", made_of<SGD>(SGDOptions(0.05).momentum(0.9))},
      {"torch's AdamW", made_of<AdamW>(AdamWOptions(1e-2))},
      {"torch's Adam", made_of<Adam>(AdamOptions(1e-2).amsgrad(true))},
      {"torch's RMSprop", made_of<RMSprop>(RMSpropOptions(1e-2).momentum(0.9).centered(true))},
      {"torch's Adagrad", made_of<Adagrad>(AdagradOptions(1e-2))}};
  for (const auto& ours : every_optimizer())
    optimizers.emplace_back(ours.name, [&](auto parameters) { return ours.make(std::move(parameters), {}).torchs; });
  for (const auto& [name, optimizer] : optimizers) {
    SCOPED_TRACE(name);
    expect_as_without_moves({.moves = moves, .optimizer = optimizer, .dtype = torch::kDouble});
  }
  const optim::StateOptions low{.state_dtype = torch::kBFloat16, .stochastic_rounding = true};
  expect_as_without_moves({.moves = moves, .optimizer = made_of<optim::Adam>(AdamOptions(1e-2), low)});
}

// A model with its optimizer, on one of two ranks.
struct Trained {
  std::shared_ptr<SmallNetImpl> net = make_small_net();
  Group group;
  std::unique_ptr<torch::optim::Optimizer> optimizer = kFusedAdamW(net->parameters());

  explicit Trained(Strategy strategy = Strategy::kFullShard) : group(shard_blocks(*net, {.strategy = strategy})) {}
  void move(Strategy to) { set_strategy(group, *optimizer, to); }
  void step(int number) {
    loss_of_rank(group, *net, number).backward();
    optimizer->step();
    optimizer->zero_grad();
  }
};

void on_two_ranks(const std::function<void(int rank)>& act) { run_thread_ranks(2, act); }

void give_state(torch::optim::Optimizer& optimizer, const Tensor& parameter, const Tensor& values) {
  auto state = std::make_unique<torch::optim::AdamWParamState>();
  state->exp_avg(values).exp_avg_sq(values.clone());
  optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
}

// Calls `see` with the inputs of each all-gather before it begins.
void set_all_gather(const Group& group, std::function<void(const Tensor& input)> see) {
  group.set_custom_all_gather([see = std::move(see)](Communicator& ranks, std::vector<GatherPlane> planes, Tag tag) {
    for (const auto& plane : planes) see(plane.input);
    return ranks.all_gather(std::move(planes), std::move(tag));
  });
}

TEST(SetStrategy, OfABlockLeavesTheOthersAndKeepsHooksAndCustomCollectives) {
  const auto act = [](int) {
    Trained model(Strategy::kReplicate);
    const auto block = group_of(*model.net->blocks[1]);
    int gathers = 0, hooks = 0;
    block.set_all_reduce_hook([&](const Tensor&) { ++hooks; });
    set_all_gather(block, [&](const Tensor&) { ++gathers; });
    model.step(0);
    set_strategy(block, *model.optimizer, Strategy::kShardGradOp);
    gathers = hooks = 0;
    model.step(1);
    const auto planes = std::ssize(param_groups(block).front()->flats());
    EXPECT_EQ(gathers, planes);
    EXPECT_EQ(hooks, planes);
    EXPECT_LT(block.stats().rows_numel, block.stats().parameter_numel);
    EXPECT_EQ(local_rows(model.net->head->weight).count, 3) << "another group's";
  };
  run_thread_ranks(2, act, {.backend = "gloo"});
}

// Costs that depend on the strategy: elements and bytes of rows, gathers of a step, and bytes of whole parameters in
// the scope, after it, after backward and after the step.
using Cost = std::array<int64_t, 7>;

// Returns this rank's costs in a model's first step after a move. The moved model predicts no reads, as a new one does.
Cost cost_after(Strategy from, Strategy to) {
  const Trained other(to);  // a rank counts the bytes of all its models
  const auto rows = other.group.stats().rows.current, whole_of_other = other.group.stats().whole.current;
  Trained model(from);
  if (from != to) {
    model.step(0);
    model.move(to);
  }
  const auto stats = [&] { return model.group.stats(); };
  const auto whole = [&] { return stats().whole.current - whole_of_other; };
  Cost cost{stats().rows_numel, stats().rows.current - rows, -stats().gathers};
  {
    ForwardScope scope(model.group);
    const auto loss = small_net_loss(*model.net, {0, rank() * 2, 2});
    cost[3] = whole();
    scope.close();
    cost[4] = whole();
    loss.backward();
  }
  cost[5] = whole();
  model.optimizer->step();
  model.optimizer->zero_grad();
  cost[6] = whole();
  cost[2] += stats().gathers;
  return cost;
}

TEST(SetStrategy, CostsWhatTheNewStrategyCosts) {
  on_two_ranks([](int) {
    for (const auto to : kStrategies) {
      const auto expected = cost_after(to, to);
      for (const auto from : kStrategies)
        if (from != to) EXPECT_EQ(cost_after(from, to), expected) << from << " to " << to;
    }
  });
}

// Steps and gathers include the padding between two parameters in memory, so a move must not leave garbage there.
TEST(SetStrategy, MovesGradientsWithNothingBetweenThem) {
  mallopt(M_PERTURB, 0x80);  // new memory is full of large numbers
  const auto act = [](int) {
    Trained model(Strategy::kReplicate);
    optim::SGD optimizer(model.net->parameters(), torch::optim::SGDOptions(0.05));
    loss_of_rank(model.group, *model.net, 0).backward();
    set_strategy(model.group, optimizer, Strategy::kFullShard);
    optimizer.step();
    double largest = 0;
    set_all_gather(model.group, [&](const Tensor& input) {
      if (input.numel() > 0) largest = std::max(largest, input.abs().max().item<double>());
    });
    loss_of_rank(model.group, *model.net, 1);
    EXPECT_GT(largest, 0);
    EXPECT_LT(largest, 10);
  };
  run_thread_ranks(2, act, {.backend = "gloo"});
  mallopt(M_PERTURB, 0);
}

TEST(SetStrategy, IsRefusedWhereItWouldLoseSomething) {
  on_two_ranks([](int) {
    Trained model;
    const auto& group = model.group;
    const auto refusal = [&](torch::optim::Optimizer& of, std::optional<DeviceMesh> mesh = {}) {
      return message_of<UsageError>([&] { set_strategy(group, of, Strategy::kReplicate, mesh); });
    };
    constexpr const char* kOpen = "a scope, a backward or a LocalRows is open";
    const auto forward = [&] {
      const ForwardScope scope(group);
      const auto loss = small_net_loss(*model.net, {0, 0, 2});
      EXPECT_THAT(refusal(*model.optimizer), HasSubstr(kOpen));
      return loss;
    };
    const auto loss = forward();
    {
      const auto local = group.no_sync();
      loss.backward();
    }
    EXPECT_THAT(refusal(*model.optimizer), HasSubstr("wait for their reduction"));
    group.reset_iter_state();
    {
      const LocalRows rows(group);
      EXPECT_THAT(refusal(*model.optimizer), HasSubstr(kOpen));
    }
    EXPECT_THAT(refusal(*kFusedAdamW(model.net->head->parameters())),
                HasSubstr("is not one of the optimizer's parameters"));
    auto lbfgs = optim::LBFGS(model.net->parameters(), torch::optim::LBFGSOptions(1e-3).max_iter(1));
    lbfgs.step([&] {
      lbfgs.zero_grad();
      auto value = forward();
      value.backward();
      return value;
    });
    EXPECT_THAT(refusal(lbfgs), HasSubstr("has state of an optimizer that is unknown or not element-wise"));
    torch::optim::AdamW unsharded(model.net->parameters(), torch::optim::AdamWOptions(1e-2));
    give_state(unsharded, model.net->head->weight, torch::zeros({4, 11}));  // no rank has so many rows
    EXPECT_THAT(refusal(unsharded), HasSubstr("expected the sizes of this rank's rows"));
    auto leaf = torch::ones({1}, torch::requires_grad());
    const auto elsewhere = leaf * 2;
    elsewhere.register_hook([&](const Tensor&) { EXPECT_THAT(refusal(*model.optimizer), HasSubstr(kOpen)); });
    elsewhere.backward();
    const auto alone = default_process_group()->split({{0}, {1}}, "alone");
    EXPECT_THAT(refusal(*model.optimizer, init_device_mesh({}, {}, alone)),
                HasSubstr("expected a mesh of the model's 2 ranks"));
    model.move(Strategy::kReplicate);
    forward().backward();
    model.optimizer->step();
  });
}

TEST(SetStrategy, LeavesTheModelAsItWasIfItThrowsOnTheWay) {
  const auto act = [](int) {
    Trained model;
    bool fails = false;
    set_all_gather(group_of(*model.net->blocks[1]), [&](const Tensor&) {
      if (fails) throw std::runtime_error("the user's own");
    });
    model.step(0);
    const auto parameters = model.net->parameters();
    std::vector<Tensor> before;
    for (const auto& parameter : parameters) before.push_back(full_tensor(parameter));
    const auto rows = model.group.stats();
    fails = true;
    EXPECT_THROW(model.move(Strategy::kReplicate), std::runtime_error);
    fails = false;
    EXPECT_EQ(model.group.stats().rows_numel, rows.rows_numel);
    EXPECT_EQ(model.group.stats().rows.current, rows.rows.current);
    EXPECT_EQ(model.group.stats().whole.current, 0);
    for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(before[i].equal(full_tensor(parameters[i])));
    model.step(1);
    model.move(Strategy::kReplicate);
    model.step(2);
  };
  run_thread_ranks(2, act, {.backend = "gloo"});
}

TEST(SetStrategy, IsAMismatchWhereRanksAskForDifferentOnesOrHaveOtherState) {
  const std::vector<std::function<Strategy(Trained&)>> differences{
      [](Trained&) { return Strategy::kShardGradOp; },
      [](Trained& model) {
        model.net->head->weight.mutable_grad() = torch::zeros_like(model.net->head->weight);
        return Strategy::kReplicate;
      },
      [](Trained& model) {
        give_state(*model.optimizer, model.net->head->weight, torch::zeros_like(model.net->head->weight));
        return Strategy::kReplicate;
      }};
  for (const auto& difference : differences)
    on_two_ranks([&](int rank) {
      Trained model;
      const auto strategy = rank == 0 ? difference(model) : Strategy::kReplicate;
      EXPECT_THROW(model.move(strategy), Mismatch);
    });
}

TEST(SetStrategy, EndsViewsAndGraphsFromBefore) {
  on_two_ranks([](int) {
    Trained model;
    const auto loss = loss_of_rank(model.group, *model.net, 0);
    const auto view = model.net->head->weight.detach();
    model.move(Strategy::kReplicate);
    EXPECT_THAT([&] { view.clone(); }, testing::ThrowsMessage<c10::Error>(HasSubstr("or fsdp::set_strategy")));
    EXPECT_THAT([&] { loss.backward(); }, testing::ThrowsMessage<c10::Error>(HasSubstr("run forward again after it")));
    model.group.reset_iter_state();
    EXPECT_EQ(full_tensor(model.net->head->weight).sizes(), torch::IntArrayRef({3, 11}));
  });
}

}  // namespace
}  // namespace fsdp::test::strategies
