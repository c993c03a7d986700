// Tests that ranks with different parts in an iteration keep one scale, and that different scales are an error.

#include "amp/scaled_net.h"

namespace fsdp::test {
namespace {

TEST(GradScalerRanks, OptimizersOfShardedAndOfPlainParametersKeepOneScale) {
  run_thread_ranks(3, [](int r) {
    Scaled without, model;
    const auto plain = plain_parameter();  // each rank has its own
    torch::optim::SGD other({plain}, 0.5);
    GradScaler scaler({.init_scale = 8, .process_group = default_process_group()});
    for (int step = 0; step < 3; ++step) {
      without.iterate(step);
      other.zero_grad();
      scaler.scale(model.forward(step) + plain.sum()).backward();
      if (step == 1 && r == 1) plain.mutable_grad()[0] = kInf;
      scaler.step(other);
      model.step(scaler);
      EXPECT_EQ(scaler.get_scale(), step == 0 ? 8 : 4) << "rank " << r;
    }
    EXPECT_TRUE(are_equal(without.values(), model.values()));
    EXPECT_TRUE(torch::equal(plain.detach(), torch::zeros({2}))) << "two steps of three";
  });
}

// The scales differ only in the last bit of a float.
TEST(GradScalerRanks, ScalesThatDifferAreAMismatch) {
  run_thread_ranks(2, [](int r) {
    Scaled model;
    GradScaler scaler({.init_scale = 0.3F});
    model.backward(scaler, 0);
    scaler.step(*model.optimizer);
    scaler.update(r == 0 ? 0.3F : std::nextafterf(0.3F, 1));
    model.backward(scaler, 1);
    expect_error<Mismatch>([&] { scaler.unscale_(*model.optimizer); }, {"GradScaler::unscale_ by the scale 0.300000"});
  });
}

TEST(GradScalerRanks, AnOptimizerOfPlainParametersAloneDecidesOnEachRankUnlessItIsTold) {
  run_thread_ranks(2, [](int r) {
    Scaled model;
    const auto plain = plain_parameter();
    torch::optim::SGD other({plain}, 0.5);
    GradScaler scaler({.init_scale = 8});
    scaler.scale(model.forward(0) + plain.sum()).backward();
    if (r == 1) plain.mutable_grad()[0] = kInf;
    scaler.step(other);
    model.step(scaler);
    EXPECT_EQ(scaler.get_scale(), r == 1 ? 4 : 8);
    model.backward(scaler, 1);
    expect_error<Mismatch>([&] { scaler.step(*model.optimizer); }, {"GradScaler::step by the scale 4"});
  });
}

// The sharded parameters are frozen, and only rank 0 has a gradient of the plain parameter.
TEST(GradScalerRanks, ARankWithoutGradientsStepsAlong) {
  for (const bool is_ours : {false, true})
    run_thread_ranks(2, [&](int r) {
      const auto net = float_net();
      for (const auto& parameter : net->parameters()) parameter.set_requires_grad(false);
      const auto group = shard_blocks(*net);
      const auto plain = plain_parameter();
      auto parameters = net->parameters();
      parameters.push_back(plain);
      std::unique_ptr<torch::optim::Optimizer> optimizer = std::make_unique<torch::optim::SGD>(parameters, 0.5);
      if (is_ours) optimizer = std::make_unique<optim::SGD>(parameters, 0.5);
      GradScaler scaler({.init_scale = 8});
      for (int step = 0; step < 2; ++step) {
        optimizer->zero_grad();
        const auto loss = scaler.scale(plain.sum());
        if (r == 0) loss.backward();
        if (r == 0 && step == 1) plain.mutable_grad()[0] = kInf;
        scaler.step(*optimizer);
        scaler.update();
      }
      EXPECT_EQ(plain.sum().item<float>(), r == 0 ? 1 : 2);
      EXPECT_EQ(scaler.get_scale(), 4) << "rank " << r;
      optimizer->zero_grad();
      expect_error([&] { scaler.step(*optimizer); }, {"none of the optimizer's parameters has a gradient"});
    });
}

// One rank never has data, so it never scales a loss.
TEST(GradScalerRanks, TrainsInJoinToTheBitsOfTrainingWithoutIt) {
  // A disabled scaler trains as if there were none.
  const auto train_in_join = [](Scaled& model, int rank, GradScaler& scaler, bool unscales) {
    int step = 0;
    const auto forward_and_backward = [&] { model.backward(scaler, step); };
    while (join(model.group, step < (std::array{0, 3, 1})[static_cast<size_t>(rank)], forward_and_backward)) {
      if (unscales) scaler.unscale_(*model.optimizer);
      model.step(scaler);
      model.optimizer->zero_grad();
      ++step;
    }
    EXPECT_EQ(step, 3);
  };
  for (const bool unscales : {false, true}) {
    const auto& make = unscales ? makers().back() : makers().front();  // an optimizer of fsdp::optim or one of torch
    run_thread_ranks(3, [&](int r) {
      Scaled plain({}, make), scaled({}, make);
      GradScaler none({.enabled = false}), scaler({.init_scale = 4096, .growth_interval = 2});
      train_in_join(plain, r, none, unscales);
      train_in_join(scaled, r, scaler, unscales);
      EXPECT_EQ(scaler.get_scale(), 8192) << "rank " << r;
      EXPECT_TRUE(are_equal(plain.values(), scaled.values()));
    });
  }
}

TEST(GradScalerRanks, LoadingGivesUpWhatAnIterationWasAt) {
  run_thread_ranks(2, [](int) {
    Scaled plain, scaled;
    GradScaler scaler({.init_scale = 8});
    const auto saved = scaler.state();
    scaled.backward(scaler, 0);
    scaler.unscale_(*scaled.optimizer);
    scaler.load(saved);
    expect_error([&] { scaler.step(*scaled.optimizer); }, {"no loss has been scaled yet"});  // not since load
    plain.iterate(1);
    scaled.backward(scaler, 1);
    scaler.unscale_(*scaled.optimizer);
    scaled.step(scaler);
    EXPECT_TRUE(are_equal(plain.values(), scaled.values()));
  });
}

}  // namespace
}  // namespace fsdp::test
