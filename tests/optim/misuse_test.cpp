// Tests of steps that are refused before anything is written.

#include <fsdp/grad_scaler.h>
#include <fsdp/optim.h>
#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <sstream>

#include "misuse/net.h"
#include "optim/net.h"

namespace fsdp::test {
namespace {

using torch::optim::AdamWOptions;
using torch::optim::RMSpropOptions;
using torch::optim::SGDOptions;

struct Trained {
  std::shared_ptr<OptimNet> net = optim_net(torch::kFloat);
  Group group = [this] {
    shard_in_two(*net);
    return group_of(*net);
  }();
  optim::AdamW optimizer{group.parameters(), AdamWOptions(0.1)};
  const torch::Tensor& p = net->in->weight;

  torch::Tensor loss() const {
    ForwardScope scope(group);
    return net->loss({1, 0, 2});
  }
};

// Runs `act` after a backward, on two ranks. `act` must leave the rows and the optimizer as they are, so that a step
// afterwards is right.
void on_two_ranks(const std::function<void(Trained&)>& act) {
  run_thread_ranks(2, [&](int rank) {
    Trained t;
    backward(*t.net, {2, rank}, 1);
    const auto before = full_tensor(t.net->out->weight);
    act(t);
    EXPECT_THAT(t.optimizer.state(), testing::IsEmpty());
    EXPECT_TRUE(torch::equal(before, full_tensor(t.net->out->weight)));
    t.optimizer.zero_grad();
    t.loss().backward();
    t.optimizer.step();
    EXPECT_FALSE(torch::equal(before, full_tensor(t.net->out->weight)));
  });
}

torch::Tensor with_gradient(const torch::Tensor& values, double gradient = 1) {
  const auto parameter = values.clone().requires_grad_();
  parameter.mutable_grad() = torch::full_like(values, gradient);
  return parameter;
}

TEST(OptimMisuse, AStepInAScopeNamesTheParameterAndTheWaysOutAndWritesNothing) {
  on_two_ranks([](Trained& t) {
    ForwardScope scope(t.group);
    expect_error([&] { t.optimizer.step(); },
                 {"@optim::AdamW::step", "parameter 'scale'", "optimizer.step() belongs after it"});
    // Nothing is written if a plain tensor comes first, either.
    const auto plain = with_gradient(torch::ones({3}));
    optim::SGD optimizer({plain, t.p}, SGDOptions(0.1));
    expect_error([&] { optimizer.step(); }, {"optim::SGD::step"});
    EXPECT_TRUE(torch::equal(plain.detach(), torch::ones({3})));
  });
}

// The steps come early in backward, deep in it, and when backward has set all gradients aside.
TEST(OptimMisuse, AStepInBackwardOrAfterOneThatThrewIsRefused) {
  on_two_ranks([](Trained& t) {
    std::string early, deep;
    const auto loss = t.loss();
    loss.register_hook([&](const torch::Tensor&) { early = message_of([&] { t.optimizer.step(); }); });
    const auto& weight = t.net->embedding->weight;
    auto hook = weight.register_hook([&](const torch::Tensor& gradient) {
      deep = message_of([&] { t.optimizer.step(); });
      throw std::runtime_error("out of eggs");
      return gradient;
    });
    EXPECT_THROW(loss.backward({}, /*retain_graph=*/true), std::runtime_error);
    EXPECT_THAT(early, says({"optim::AdamW::step", "a backward is open"}));
    EXPECT_THAT(deep, says({"optim::AdamW::step"}));
    expect_error([&] { t.optimizer.step(); }, {"optim::AdamW::step"});
    weight.remove_hook(hook);
    expect_error([&] { loss.backward(); }, {"reset_iter_state()"});
    t.group.reset_iter_state();
  });
}

TEST(OptimMisuse, AGradientOfTheWholeParametersSizesIsRefusedWithBothSizes) {
  on_two_ranks([](Trained& t) {
    t.p.mutable_grad() = torch::ones({9, 5});
    const Words sizes{"parameter 'in.weight' has a gradient of the wrong sizes", "found [9, 5]"};
    expect_error([&] { t.optimizer.step(); }, sizes);
    expect_error([&] { clip_grad_norm_(t.group, 1.0); }, sizes);
    expect_error([&] { t.loss().backward(); },
                 {"parameter 'in.weight' already had a gradient of different sizes", "found [9, 5]"});
    t.group.reset_iter_state();  // forgets the failed backward
  });
}

TEST(OptimMisuse, FactorsAndEditedOptionsThatCannotBeRightAreRefusedInAStep) {
  on_two_ranks([](Trained& t) {
    for (const double factor : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()})
      expect_error([&] { t.optimizer.step_scaled(factor); },
                   {"optim::AdamW::step_scaled", "finite and at least 0, found"});
    optim::AdamW adamw(t.group.parameters(), AdamWOptions(0.1));
    static_cast<AdamWOptions&>(adamw.param_groups()[0].options()).betas({0.9, 1.0});
    expect_error([&] { adamw.step(); }, {"optim::AdamW: expected the second of betas in [0, 1), found 1"});
    optim::SGD sgd(t.group.parameters(), SGDOptions(0.1));
    static_cast<SGDOptions&>(sgd.param_groups()[0].options()).nesterov(true);
    expect_error([&] { sgd.step(); }, {"expected momentum above 0"});
    EXPECT_TRUE(adamw.state().empty() && sgd.state().empty());
  });
}

TEST(OptimMisuse, StateOfOtherRowsIsRefusedWhenItIsLoaded) {
  std::stringstream file;
  {
    OptimNet whole;
    torch::optim::AdamW optimizer(whole.in->parameters(), AdamWOptions(0.1));
    whole.loss({1, 0, 2}).backward();
    optimizer.step();
    torch::save(optimizer, file);
  }
  on_two_ranks([&](Trained& t) {
    std::stringstream own_file(file.str());
    optim::AdamW optimizer(t.net->in->parameters(), AdamWOptions(0.1));
    expect_error([&] { torch::load(optimizer, own_file); },
                 {"optim::AdamW::load", "parameter 'in.weight'", "found [9, 5]", "the same number of ranks"});
  });
}

TEST(OptimMisuse, OptionsThatCannotBeRightAreRefused) {
  using namespace optim;
  using torch::optim::AdagradOptions, torch::optim::AdamOptions;
  const std::vector<torch::Tensor> p{torch::ones({2})};
  const std::vector<std::pair<std::function<void()>, std::string>> all{
      {[=] { Adadelta(p, AdadeltaOptions(-1.0)); }, "optim::Adadelta: expected lr of at least 0, found -1"},
      {[=] { Adadelta(p, AdadeltaOptions().rho(1.5)); }, "expected rho from 0 to 1, found 1.5"},
      {[=] { Adadelta(p, AdadeltaOptions().eps(-1e-6)); }, "expected eps of at least 0"},
      {[=] { Adadelta(p, AdadeltaOptions().weight_decay(-1)); }, "expected weight_decay of at least 0"},
      {[=] { Adam(p, AdamOptions(-1.0)); }, "optim::Adam: expected lr of at least 0, found -1"},
      {[=] { Adam(p, AdamOptions().eps(-1)); }, "expected eps of at least 0"},
      {[=] { Adam(p, AdamOptions().eps(NAN)); }, "expected eps of at least 0, found nan"},
      {[=] { Adam(p, AdamOptions().betas({0.9, 1.0})); }, "expected the second of betas in [0, 1), found 1"},
      {[=] { AdamW(p, AdamWOptions().betas({-0.1, 0.9})); },
       "optim::AdamW: expected the first of betas in [0, 1), found -0.1"},
      {[=] { RMSprop(p, RMSpropOptions().alpha(-1)); }, "optim::RMSprop: expected alpha of at least 0"},
      {[=] { Adagrad(p, AdagradOptions().initial_accumulator_value(-1)); },
       "optim::Adagrad: expected initial_accumulator_value of at least 0"},
      {[=] { SGD(p, SGDOptions(0.1).nesterov(true)); },
       "optim::SGD: expected momentum above 0 and no dampening for Nesterov's momentum"},
      {[=] { AdamW(p, AdamWOptions(), {.state_dtype = torch::kHalf}); },
       "expected state_dtype kFloat or kBFloat16, found Half"},
      {[=] {
         std::vector<torch::optim::OptimizerParamGroup> groups;
         groups.emplace_back(p, std::make_unique<AdamWOptions>(AdamWOptions(-2.0)));
         AdamW optimizer(groups);
       },
       "expected lr of at least 0, found -2"}};
  for (const auto& [make, words] : all) expect_error(make, {words});
}

TEST(OptimMisuse, PlainTensorsThatCannotBeSteppedAreRefusedByTheirPlace) {
  const auto one = with_gradient(torch::ones({2})), other = with_gradient(torch::ones({2}));
  auto gaps = torch::ones({4, 6}).narrow(1, 0, 3).requires_grad_();
  gaps.mutable_grad() = torch::ones({4, 3});
  optim::SGD with_gaps({one, gaps}, SGDOptions(0.1));
  expect_error([&] { with_gaps.step(); }, {"parameter 1 of parameter group 0 has gaps", "strides [6, 1]"});
  optim::AdamW added({one}, AdamWOptions(0.1));
  added.add_param_group(torch::optim::OptimizerParamGroup({other}, std::make_unique<AdamWOptions>(-2.0)));
  expect_error([&] { added.step(); }, {"expected lr of at least 0, found -2"});
  optim::AdamW rounding({one}, AdamWOptions(), {.stochastic_rounding = true});
  expect_error([&] { rounding.step(); }, {"optim::AdamW::step", "parameter 0 of parameter group 0 is Float",
                                          "stochastic rounding needs a parameter or a state in bf16"});
  EXPECT_TRUE(torch::equal(one.detach(), torch::ones({2})));
}

// A parameter in two parameter groups is stepped once for each. The second step is refused before the first one is
// made.
TEST(OptimMisuse, AStepOfWhichTheLastPartIsRefusedWritesNothing) {
  const auto tied = with_gradient(torch::ones({2}, torch::kBFloat16));
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const bool is_centered : {false, true})
    groups.emplace_back(std::vector<torch::Tensor>{tied},
                        std::make_unique<RMSpropOptions>(RMSpropOptions(0.1).centered(is_centered)));
  optim::RMSprop optimizer(groups);
  expect_error([&] { optimizer.step(); }, {"parameter 0 of parameter group 1"});
  EXPECT_TRUE(torch::equal(tied.detach(), torch::ones({2}, torch::kBFloat16)));
  EXPECT_THAT(optimizer.state(), testing::IsEmpty());
}

// In bf16 and fp16, the mean square of gradients that hardly change is often below the square of their mean.
TEST(OptimMisuse, ACenteredRMSpropWithStateOfFewDigitsIsRefused) {
  const auto centered = RMSpropOptions(0.01).centered(true);
  for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
    const auto parameter = with_gradient(torch::ones({4}, dtype), 0.3);
    optim::RMSprop optimizer({parameter}, centered);
    expect_error([&] { optimizer.step(); }, {"optim::RMSprop::step", "parameter 0 of parameter group 0",
                                             "Set StateOptions::state_dtype to kFloat"});
    EXPECT_TRUE(torch::equal(parameter.detach(), torch::ones({4}, dtype)));
    optim::RMSprop in_float({parameter}, centered, {.state_dtype = torch::kFloat});
    for (int step = 0; step < 200; ++step) {
      parameter.mutable_grad() = torch::full({4}, step % 2 == 0 ? 0.3 : 0.31, dtype);
      in_float.step();
      ASSERT_TRUE(parameter.isfinite().all().item<bool>()) << "step " << step;
    }
  }
  optim::RMSprop optimizer({with_gradient(torch::ones({4}))}, centered, {.state_dtype = torch::kBFloat16});
  expect_error([&] { optimizer.step(); }, {"would have state in BFloat16"});
}

// A loss scaler calls `step_scaled` instead of `step`.
TEST(OptimMisuse, WhoOverridesAStepOverridesTheOneWithAFactor) {
  struct Counting : optim::SGD {
    using SGD::SGD;
    int steps = 0;
    at::Tensor step_scaled(double factor, Closure closure) override {
      ++steps;
      return SGD::step_scaled(factor, std::move(closure));
    }
  };
  const auto parameter = with_gradient(torch::ones({2}));
  Counting optimizer({parameter}, SGDOptions(0.25));
  optimizer.step();
  GradScaler scaler({.init_scale = 2});
  static_cast<void>(scaler.scale(parameter.sum()));
  scaler.step(optimizer);
  EXPECT_EQ(optimizer.steps, 2);
  EXPECT_TRUE(torch::equal(parameter.detach(), torch::full({2}, 0.625)));
}

}  // namespace
}  // namespace fsdp::test
