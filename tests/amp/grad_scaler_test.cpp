// Tests that GradScaler does what torch.amp's scaler does, and makes the same decision on every rank.

#include <ATen/ops/_amp_update_scale.h>
#include <cmath>

#include "amp/loss_scale.h"
#include "amp/scaled_net.h"

namespace fsdp::test {
namespace {

using torch::Tensor;
using torch::optim::Optimizer;

TEST(GradScaler, UpdatesScalesAsLibTorchsOperator) {
  for (const auto& options : {GradScalerState{1024, 2, 0.5, 3, 0}, GradScalerState{10.1F, 1.7, 0.3, 2, 0},
                              GradScalerState{1e38F, 2, 0.9, 1, 0}, GradScalerState{1e-38F, 1.1, 0.01, 4, 0}}) {
    auto ours = options;
    auto scale = torch::tensor(static_cast<float>(options.scale)), tracker = torch::zeros({}, torch::kInt);
    for (int i = 0; i < 200; ++i) {
      const bool is_inf = i * i % 7 == 4;
      ours = amp::updated(ours, is_inf);
      at::_amp_update_scale_(scale, tracker, torch::tensor(is_inf ? 1.0F : 0.0F), options.growth_factor,
                             options.backoff_factor, options.growth_interval);
      ASSERT_EQ(ours.scale, scale.item<float>()) << "step " << i;
      ASSERT_EQ(ours.growth_tracker, tracker.item<int>()) << "step " << i;
    }
  }
}

// The scale is a power of two, so dividing by it gives back the bits.
TEST(GradScaler, TrainsToTheBitsOfTrainingWithoutIt) {
  const auto expect_same = [](int world, Strategy strategy, const MakeOptimizer& make) {
    SCOPED_TRACE(c10::str(world, " ranks, ", strategy));
    run_thread_ranks(world, [&](int) {
      Scaled plain({.strategy = strategy}, make), scaled({.strategy = strategy}, make);
      GradScaler scaler({.init_scale = 4096, .growth_interval = 1});
      for (int step = 0; step < 2; ++step) plain.iterate(step), scaled.iterate(scaler, step);
      EXPECT_EQ(scaler.get_scale(), 4096 * 4);
      const auto& optimizer = *plain.optimizer;
      EXPECT_TRUE(are_equal(plain.values(), scaled.values())) << typeid(optimizer).name();
    });
  };
  for (const int world : worlds_up_to(4)) expect_same(world, Strategy::kFullShard, momentum);
  for (const auto& make : makers()) expect_same(3, Strategy::kFullShard, make);
  for (const auto& make : {makers().front(), makers().back()}) expect_same(2, Strategy::kReplicate, make);
}

TEST(GradScaler, AnInfOnOneRankSkipsTheStepOfAnyOptimizerOnAll) {
  auto all = makers();
  for (const bool has_decay : {false, true})
    all.push_back([=](auto parameters) -> std::unique_ptr<Optimizer> {
      if (has_decay) return std::make_unique<torch::optim::AdamW>(parameters, 0.05);
      return std::make_unique<torch::optim::Adam>(parameters, 0.05);
    });
  constexpr float kBad[]{kInf, -kInf, NAN};
  for (size_t i = 0; i < all.size(); ++i)
    run_thread_ranks(3, [&](int) {
      Scaled model({}, all[i]);
      GradScaler scaler;
      const auto before = model.values();
      model.backward(scaler, 0);
      model.plant(kBad[i % 3], 1);
      EXPECT_FALSE(scaler.step(*model.optimizer).defined());
      scaler.update();
      EXPECT_TRUE(are_equal(before, model.values())) << "optimizer " << i;
      EXPECT_EQ(scaler.get_scale(), 32768);
      model.iterate(scaler, 1);
      EXPECT_FALSE(are_equal(before, model.values()));
      for (const auto& values : model.values()) EXPECT_TRUE(values.isfinite().all().item<bool>());
    });
}

TEST(GradScaler, LeavesGradientsOfOtherOptimizersAloneWhereTheyLieBetween) {
  run_thread_ranks(2, [](int) {
    const auto net = float_net();
    const auto group = fully_shard(static_cast<torch::nn::Module&>(*net));
    std::vector<Tensor> some, others;
    for (const auto& parameter : net->parameters()) (some.size() <= others.size() ? some : others).push_back(parameter);
    torch::optim::SGD one(some, 0.1), other(others, 0.1);
    GradScaler scaler({.init_scale = 8});
    const auto loss = in_scope(group, [&] { return small_net_loss(*net, {0, rank() * 2, 2}); });
    scaler.scale(loss).backward();
    std::vector<Tensor> before;
    for (const auto& parameter : net->parameters()) before.push_back(full_grad(parameter));
    scaler.unscale_(one);
    for (size_t i = 0; i < before.size(); ++i)
      EXPECT_TRUE(torch::equal(full_grad(net->parameters()[i]), i % 2 == 0 ? before[i] / 8 : before[i])) << i;
    // An inf in one optimizer's gradients skips only that optimizer's step, and lowers the scale.
    for (const auto& parameter : others)
      if (parameter.grad().numel() > 0 && rank() == 1) parameter.grad().fill_(kInf);
    const auto first = full_tensor(some[0]), second = full_tensor(others[0]);
    scaler.step(one);
    scaler.step(other);
    scaler.update();
    EXPECT_FALSE(torch::equal(first, full_tensor(some[0])));
    EXPECT_TRUE(torch::equal(second, full_tensor(others[0])));
    EXPECT_EQ(scaler.get_scale(), 4);
  });
}

TEST(GradScaler, TakesParametersOfSeveralModelsAndPlainOnesInOneOptimizer) {
  run_thread_ranks(3, [](int r) {
    Scaled one, other;
    const auto plain = plain_parameter();
    auto parameters = one.net->parameters();
    const auto more = other.net->parameters();
    parameters.insert(parameters.end(), more.begin(), more.end());
    parameters.push_back(plain);
    torch::optim::SGD optimizer(parameters, 0.1);
    GradScaler scaler({.init_scale = 2});
    const auto loss = one.forward(0) + other.forward(0) + plain.sum();
    scaler.scale(loss).backward();
    if (r == 2) plain.mutable_grad()[1] = kInf;  // each rank has its own
    const auto before = one.values();
    scaler.step(optimizer);
    scaler.update();
    EXPECT_TRUE(are_equal(before, one.values()));
    EXPECT_EQ(plain.sum().item<float>(), 2);
    EXPECT_EQ(scaler.get_scale(), 1);
  });
}

TEST(GradScaler, WorksForAModelWithoutRanksToo) {
  const auto net = float_net();
  auto optimizer = sgd(net->parameters());
  GradScaler scaler;
  const auto before = net->head->weight.detach().clone();
  scaler.scale(small_net_loss(*net, {0, 0, 2})).backward();
  scaler.step(optimizer);
  scaler.update();
  EXPECT_FALSE(torch::equal(before, net->head->weight));
}

TEST(GradScaler, ClippingComesAfterUnscaling) {
  for (const auto& make : {makers().front(), makers().back()})
    run_thread_ranks(3, [&](int) {
      Scaled plain({}, make), scaled({}, make);
      GradScaler scaler;
      for (int step = 0; step < 2; ++step) {
        plain.forward(step).backward();
        const double norm = clip_grad_norm_(plain.group, 0.01);
        plain.optimizer->step();
        scaled.backward(scaler, step);
        scaler.unscale_(*scaled.optimizer);
        EXPECT_EQ(clip_grad_norm_(scaled.group, 0.01), norm);
        scaled.step(scaler);
      }
      EXPECT_TRUE(are_equal(plain.values(), scaled.values()));
    });
}

TEST(GradScaler, RowsOfLowPrecisionAreUnscaledToo) {
  for (const auto dtype : {torch::kHalf, torch::kBFloat16})
    run_thread_ranks(2, [&](int) {
      const auto net = float_net();
      net->to(dtype);
      const auto group = shard_blocks(*net);
      optim::SGD optimizer(net->parameters(), 0.1);
      GradScaler scaler({.init_scale = 64});
      const auto loss = in_scope(group, [&] { return small_net_loss(*net, {0, rank() * 2, 2}); });
      const auto scaled = scaler.scale(loss);
      EXPECT_EQ(scaled.scalar_type(), torch::kFloat) << "fp16 may not have it";
      scaled.backward();
      const auto weight = full_tensor(net->first->weight), before = full_grad(net->first->weight);
      EXPECT_EQ(before.scalar_type(), dtype);
      scaler.unscale_(optimizer);
      EXPECT_TRUE(torch::equal(full_grad(net->first->weight), before / 64));
      scaler.step(optimizer);
      const auto expected = weight.to(torch::kFloat) - (before / 64).to(torch::kFloat) * 0.1;
      EXPECT_TRUE(torch::equal(full_tensor(net->first->weight), expected.to(dtype)));
    });
}

// At first the scale is too large for fp16: gradients are inf, and steps are skipped until the scale fits.
TEST(GradScaler, FindsTheScaleAtWhichFp16Trains) {
  run_thread_ranks(2, [](int) {
    Scaled model({.mp_policy = MixedPrecisionPolicy{.param_dtype = torch::kHalf}});
    GradScaler scaler({.init_scale = std::ldexp(1.0, 26)});
    const auto start = model.values();
    int skipped = 0;
    for (int step = 0; step < 24; ++step) {
      const auto before = scaler.get_scale();
      model.iterate(scaler, step);
      skipped += scaler.get_scale() < before;
      if (step == 0) {
        EXPECT_TRUE(are_equal(start, model.values()));
      }
    }
    EXPECT_GT(skipped, 5);
    EXPECT_LT(skipped, 22);
    EXPECT_FALSE(are_equal(start, model.values()));
    for (const auto& values : model.values()) EXPECT_TRUE(values.isfinite().all().item<bool>());
  });
}

}  // namespace
}  // namespace fsdp::test
