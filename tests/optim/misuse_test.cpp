// Steps that are refused, before anything is written.

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

using testing::AllOf;
using testing::HasSubstr;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

struct Trained {
  std::shared_ptr<OptimNet> net = build_alike([] { return std::make_shared<OptimNet>(); });
  std::optional<Group> group;
  std::unique_ptr<optim::AdamW> optimizer;

  void start(int rank) {
    shard_in_two(*net);
    group = group_of(*net);
    optimizer = std::make_unique<optim::AdamW>(group->parameters(), AdamWOptions(0.1));
    backward(*net, {2, rank}, 1);
  }
  int64_t states() const { return static_cast<int64_t>(optimizer->state().size()); }
};

void on_two_ranks(const std::function<void(Trained&, int)>& fn) {
  std::vector<Trained> trained(2);
  run_thread_ranks(2, [&](int rank) {
    auto& mine = trained[static_cast<size_t>(rank)];
    mine.start(rank);
    fn(mine, rank);
  });
}

TEST(OptimMisuse, AStepInAScopeNamesTheParameterAndTheWaysOutAndWritesNothing) {
  on_two_ranks([](Trained& t, int rank) {
    auto before = full_tensor(t.net->out->weight);
    {
      ForwardScope scope(*t.group);
      EXPECT_THAT(message_of([&] { t.optimizer->step(); }),
                  AllOf(HasSubstr(c10::str("[fsdp rank ", rank, "/2] optim::AdamW::step")),
                        HasSubstr("parameter 'scale'"), HasSubstr("optimizer.step() belongs after it")));
    }
    EXPECT_EQ(t.states(), 0);
    EXPECT_TRUE(torch::equal(before, full_tensor(t.net->out->weight)));
    t.optimizer->step();
    EXPECT_FALSE(torch::equal(before, full_tensor(t.net->out->weight)));
  });
}

TEST(OptimMisuse, AStepInAScopeOfOneOfSeveralModelsWritesNoneOfThem) {
  on_two_ranks([](Trained& t, int) {
    auto plain = torch::ones({3}).requires_grad_();
    plain.mutable_grad() = torch::ones({3});
    optim::SGD optimizer({plain, t.net->in->weight}, SGDOptions(0.1));
    ForwardScope scope(*t.group);
    EXPECT_THROW(optimizer.step(), UsageError);
    EXPECT_TRUE(torch::equal(plain.detach(), torch::ones({3})));
  });
}

TEST(OptimMisuse, AStepInBackwardIsRefused) {
  on_two_ranks([](Trained& t, int) {
    std::string message;
    auto loss = [&] {
      ForwardScope scope(*t.group);
      return t.net->loss({1, 0, 2});
    }();
    loss.register_hook([&](const torch::Tensor&) { message = message_of([&] { t.optimizer->step(); }); });
    loss.backward();
    EXPECT_THAT(message, AllOf(HasSubstr("optim::AdamW::step"), HasSubstr("a backward that is open")));
    EXPECT_EQ(t.states(), 0);
  });
}

// Backward has put all gradients aside by then.
TEST(OptimMisuse, AStepDeepInBackwardOrAfterOneThatThrewIsRefused) {
  on_two_ranks([](Trained& t, int) {
    std::string message;
    auto loss = [&] {
      ForwardScope scope(*t.group);
      return t.net->loss({1, 0, 2});
    }();
    auto hook = t.net->embedding->weight.register_hook([&](const torch::Tensor& gradient) {
      message = message_of([&] { t.optimizer->step(); });
      throw std::runtime_error("out of eggs");
      return gradient;
    });
    EXPECT_THROW(loss.backward({}, /*retain_graph=*/true), std::runtime_error);
    EXPECT_THAT(message, HasSubstr("optim::AdamW::step"));
    EXPECT_THAT(message_of([&] { t.optimizer->step(); }), HasSubstr("optim::AdamW::step"));
    t.net->embedding->weight.remove_hook(hook);
    EXPECT_THAT(message_of([&] { loss.backward(); }), HasSubstr("reset_iter_state()"));
    EXPECT_EQ(t.states(), 0);
    t.group->reset_iter_state();
  });
}

TEST(OptimMisuse, AGradientOfTheWholeParametersSizesBeforeBackwardIsRefusedAndForgotten) {
  on_two_ranks([](Trained& t, int) {
    const auto backward = [&] {
      torch::Tensor loss;
      {
        ForwardScope scope(*t.group);
        loss = t.net->loss({1, 0, 2});
      }
      loss.backward();
    };
    t.net->in->weight.mutable_grad() = torch::ones({9, 5});
    EXPECT_THAT(message_of(backward),
                AllOf(HasSubstr("parameter 'in.weight' had a gradient of other sizes"), HasSubstr("found [9, 5]")));
    t.group->reset_iter_state();
    t.optimizer->zero_grad();
    backward();
    t.optimizer->step();
  });
}

TEST(OptimMisuse, AGradientOfTheWholeParametersSizesIsRefusedWithBothSizes) {
  on_two_ranks([](Trained& t, int) {
    t.net->in->weight.mutable_grad() = torch::ones({9, 5});
    EXPECT_THAT(message_of([&] { t.optimizer->step(); }),
                AllOf(HasSubstr("parameter 'in.weight' has a gradient of other sizes"), HasSubstr("found [9, 5]")));
    EXPECT_EQ(t.states(), 0);
    EXPECT_THAT(message_of([&] { clip_grad_norm_(*t.group, 1.0); }),
                AllOf(HasSubstr("parameter 'in.weight' has a gradient of other sizes"), HasSubstr("found [9, 5]")));
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
  on_two_ranks([&](Trained& t, int) {
    std::stringstream own_file(file.str());
    optim::AdamW optimizer(t.net->in->parameters(), AdamWOptions(0.1));
    EXPECT_THAT(message_of([&] { torch::load(optimizer, own_file); }),
                AllOf(HasSubstr("optim::AdamW::load"), HasSubstr("parameter 'in.weight'"), HasSubstr("found [9, 5]"),
                      HasSubstr("the same number of ranks")));
  });
}

TEST(OptimMisuse, APlainTensorWithGapsIsRefusedByItsPlace) {
  auto parameter = torch::ones({4, 6}).narrow(1, 0, 3).requires_grad_();
  parameter.mutable_grad() = torch::ones({4, 3});
  optim::SGD optimizer({torch::ones({2}), parameter}, SGDOptions(0.1));
  EXPECT_THAT(message_of([&] { optimizer.step(); }),
              AllOf(HasSubstr("parameter 1 of parameter group 0 has gaps"), HasSubstr("strides [6, 1]")));
}

template <class Optimizer, class Options>
std::string message_of_options(const Options& options) {
  return message_of([&] { Optimizer({torch::ones({2})}, options); });
}

TEST(OptimMisuse, OptionsOfAdadeltaThatCannotBeRightAreRefused) {
  using optim::AdadeltaOptions;
  const auto message = message_of_options<optim::Adadelta, AdadeltaOptions>;
  EXPECT_THAT(message(AdadeltaOptions(-1.0)), HasSubstr("expected lr of at least 0, found -1"));
  EXPECT_THAT(message(AdadeltaOptions().rho(1.5)), HasSubstr("expected rho from 0 to 1, found 1.5"));
  EXPECT_THAT(message(AdadeltaOptions().eps(-1e-6)), HasSubstr("expected eps of at least 0"));
  EXPECT_THAT(message(AdadeltaOptions().weight_decay(-1)), HasSubstr("expected weight_decay of at least 0"));
}

TEST(OptimMisuse, OptionsOfTheOthersThatCannotBeRightAreRefused) {
  const auto adam = message_of_options<optim::Adam, torch::optim::AdamOptions>;
  EXPECT_THAT(adam(torch::optim::AdamOptions(-1.0)), HasSubstr("optim::Adam: expected lr of at least 0, found -1"));
  EXPECT_THAT(adam(torch::optim::AdamOptions().eps(-1)), HasSubstr("expected eps of at least 0"));
  EXPECT_THAT(adam(torch::optim::AdamOptions().eps(std::nan(""))), HasSubstr("expected eps of at least 0, found nan"));
  EXPECT_THAT(adam(torch::optim::AdamOptions().betas({0.9, 1.0})),
              HasSubstr("expected the second of betas from 0 to below 1, found 1"));
  EXPECT_THAT((message_of_options<optim::AdamW>(AdamWOptions().betas({-0.1, 0.9}))),
              HasSubstr("optim::AdamW: expected the first of betas from 0 to below 1, found -0.1"));
  EXPECT_THAT((message_of_options<optim::RMSprop>(torch::optim::RMSpropOptions().alpha(-1))),
              HasSubstr("optim::RMSprop: expected alpha of at least 0"));
  EXPECT_THAT((message_of_options<optim::Adagrad>(torch::optim::AdagradOptions().initial_accumulator_value(-1))),
              HasSubstr("optim::Adagrad: expected initial_accumulator_value of at least 0"));
  EXPECT_THAT((message_of_options<optim::SGD>(SGDOptions(0.1).nesterov(true))),
              HasSubstr("optim::SGD: expected momentum above 0 and no dampening for Nesterov's momentum"));
}

TEST(OptimMisuse, OptionsOfAGroupOfParametersThatCannotBeRightAreRefused) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<torch::Tensor>{torch::ones({2})}, std::make_unique<AdamWOptions>(AdamWOptions(-2.0)));
  EXPECT_THAT(message_of([&] { optim::AdamW optimizer(groups); }), HasSubstr("expected lr of at least 0, found -2"));
}

template <class Optimizer, class Options>
void expect_refused_with_rows_as_before(const Options& options, const std::function<void(Options&)>& edit,
                                        const std::string& words) {
  on_two_ranks([&](Trained& t, int) {
    Optimizer optimizer(t.group->parameters(), options);
    edit(static_cast<Options&>(optimizer.param_groups()[0].options()));
    const auto before = full_tensor(t.net->out->weight);
    EXPECT_THAT(message_of([&] { optimizer.step(); }), HasSubstr(words));
    EXPECT_TRUE(torch::equal(before, full_tensor(t.net->out->weight)));
    EXPECT_THAT(optimizer.state(), testing::IsEmpty());
  });
}

TEST(OptimMisuse, OptionsThatWereEditedToWhatCannotBeRightAreRefusedInAStep) {
  expect_refused_with_rows_as_before<optim::AdamW, AdamWOptions>(
      AdamWOptions(0.1), [](AdamWOptions& options) { options.betas({0.9, 1.0}); },
      "optim::AdamW: expected the second of betas from 0 to below 1, found 1");
  expect_refused_with_rows_as_before<optim::SGD, SGDOptions>(
      SGDOptions(0.1), [](SGDOptions& options) { options.nesterov(true); }, "expected momentum above 0");
}

TEST(OptimMisuse, AGroupOfParametersThatIsAddedWithSuchOptionsIsRefusedInAStep) {
  const auto one = torch::ones({2}).requires_grad_(), other = torch::ones({2}).requires_grad_();
  for (const auto& parameter : {one, other}) parameter.mutable_grad() = torch::ones({2});
  optim::AdamW optimizer({one}, AdamWOptions(0.1));
  optimizer.add_param_group(torch::optim::OptimizerParamGroup({other}, std::make_unique<AdamWOptions>(-2.0)));
  EXPECT_THAT(message_of([&] { optimizer.step(); }), HasSubstr("expected lr of at least 0, found -2"));
  EXPECT_TRUE(torch::equal(one.detach(), torch::ones({2})));
}

// It is stepped once for each group, and the second of these is refused before the first is made.
TEST(OptimMisuse, AStepOfWhichTheLastPartIsRefusedWritesNothing) {
  const auto tied = torch::ones({2}, torch::kBFloat16).requires_grad_();
  tied.mutable_grad() = torch::ones({2}, torch::kBFloat16);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const bool is_centered : {false, true}) {
    auto options = std::make_unique<torch::optim::RMSpropOptions>(0.1);
    options->centered(is_centered);
    groups.emplace_back(std::vector<torch::Tensor>{tied}, std::move(options));
  }
  optim::RMSprop optimizer(groups);
  EXPECT_THAT(message_of([&] { optimizer.step(); }), HasSubstr("parameter 0 of parameter group 1"));
  EXPECT_TRUE(torch::equal(tied.detach(), torch::ones({2}, torch::kBFloat16)));
  EXPECT_THAT(optimizer.state(), testing::IsEmpty());
}

// In bf16 and fp16 the mean square of gradients that hardly change is often below the square of their mean.
TEST(OptimMisuse, ACenteredRMSpropWithStateOfFewDigitsIsRefused) {
  const auto centered = torch::optim::RMSpropOptions(0.01).centered(true);
  for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
    const auto parameter = torch::ones({4}, dtype).requires_grad_();
    parameter.mutable_grad() = torch::full({4}, 0.3, dtype);
    optim::RMSprop optimizer({parameter}, centered);
    EXPECT_THAT(message_of([&] { optimizer.step(); }),
                AllOf(HasSubstr("optim::RMSprop::step"), HasSubstr("parameter 0 of parameter group 0"),
                      HasSubstr("Give StateOptions::state_dtype = kFloat")));
    EXPECT_TRUE(torch::equal(parameter.detach(), torch::ones({4}, dtype)));
    optim::RMSprop in_float({parameter}, centered, {.state_dtype = torch::kFloat});
    for (int step = 0; step < 200; ++step) {
      parameter.mutable_grad() = torch::full({4}, step % 2 == 0 ? 0.3 : 0.31, dtype);
      in_float.step();
      ASSERT_TRUE(parameter.isfinite().all().item<bool>()) << "step " << step;
    }
  }
  const auto parameter = torch::ones({4}).requires_grad_();
  parameter.mutable_grad() = torch::ones({4});
  optim::RMSprop optimizer({parameter}, centered, {.state_dtype = torch::kBFloat16});
  EXPECT_THAT(message_of([&] { optimizer.step(); }), HasSubstr("would have BFloat16 state"));
}

// A loss scaler calls it instead of `step`.
TEST(OptimMisuse, WhoOverridesAStepOverridesTheOneWithAFactor) {
  struct Counting : optim::SGD {
    using SGD::SGD;
    int steps = 0;
    at::Tensor step_scaled(double factor, Closure closure) override {
      ++steps;
      return SGD::step_scaled(factor, std::move(closure));
    }
  };
  const auto parameter = torch::ones({2}).requires_grad_();
  parameter.mutable_grad() = torch::ones({2});
  Counting optimizer({parameter}, SGDOptions(0.25));
  optimizer.step();
  GradScaler scaler({.init_scale = 2});
  scaler.scale(parameter.sum());
  scaler.step(optimizer);
  EXPECT_EQ(optimizer.steps, 2);
  EXPECT_TRUE(torch::equal(parameter.detach(), torch::full({2}, 0.625)));
}

TEST(OptimMisuse, AFactorThatIsNotFiniteOrNegativeIsRefusedBeforeAnythingIsWritten) {
  on_two_ranks([](Trained& t, int) {
    const auto before = full_tensor(t.net->out->weight);
    for (const double factor : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()})
      EXPECT_THAT(message_of([&] { t.optimizer->step_scaled(factor); }),
                  AllOf(HasSubstr("optim::AdamW::step_scaled"), HasSubstr("finite and at least 0, found")));
    EXPECT_EQ(t.states(), 0);
    EXPECT_TRUE(torch::equal(before, full_tensor(t.net->out->weight)));
  });
}

TEST(OptimMisuse, StateOptionsThatDoNotFitAreRefused) {
  const auto parameter = torch::ones({4}).requires_grad_();
  parameter.mutable_grad() = torch::ones({4});
  EXPECT_THAT(message_of([&] { optim::AdamW({parameter}, AdamWOptions(), {.state_dtype = torch::kHalf}); }),
              HasSubstr("expected state_dtype kFloat or kBFloat16, found Half"));
  optim::AdamW optimizer({parameter}, AdamWOptions(), {.stochastic_rounding = true});
  EXPECT_THAT(message_of([&] { optimizer.step(); }),
              AllOf(HasSubstr("optim::AdamW::step"), HasSubstr("parameter 0 of parameter group 0 is Float"),
                    HasSubstr("expected bf16 numbers to round")));
  EXPECT_TRUE(torch::equal(parameter.detach(), torch::ones({4})));
}

}  // namespace
}  // namespace fsdp::test
