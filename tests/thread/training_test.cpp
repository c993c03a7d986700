// Sharded training against the unsharded oracle: the ways to group and to reshard.

#include "support/small_net.h"

namespace fsdp::test {
namespace {

Training<SmallNetImpl> ten_steps(std::optional<Reshard> reshard = std::nullopt) {
  FullyShardOptions options;
  options.reshard_after_forward = reshard;
  auto training = small_net_training(options);
  training.steps = 10;
  return training;
}

TEST(Training, BlocksAndRootEqualTheUnshardedRun) {
  for (int world : worlds_up_to(8)) expect_training_equals_unsharded(ten_steps(), world);
}

TEST(Training, ReshardAlwaysEqualsTheUnshardedRun) {
  for (int world : worlds_up_to(3)) expect_training_equals_unsharded(ten_steps(Reshard::always()), world);
}

TEST(Training, ReshardNeverEqualsTheUnshardedRun) {
  for (int world : worlds_up_to(3)) expect_training_equals_unsharded(ten_steps(Reshard::never()), world);
}

TEST(Training, OneGroupEqualsTheUnshardedRun) {
  auto training = ten_steps();
  training.shard = [](SmallNetImpl& net) { return fully_shard(static_cast<torch::nn::Module&>(net)); };
  for (int world : worlds_up_to(4)) expect_training_equals_unsharded(training, world);
}

TEST(Training, Float32StaysWithinItsRounding) {
  auto training = ten_steps();
  training.dtype = torch::kFloat;
  training.tolerance = 5e-6;
  // SGD: Adam's first steps divide by the root of tiny numbers and magnify roundings.
  training.optimizer = [](auto parameters) {
    return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
  };
  for (int world : worlds_up_to(4)) expect_training_equals_unsharded(training, world);
}

TEST(Training, TwoRunsGiveTheSameBits) {
  auto training = ten_steps();
  training.dtype = torch::kFloat;
  std::vector<Outcome> runs;
  for (int run = 0; run < 2; ++run) {
    std::vector<std::shared_ptr<SmallNetImpl>> models;
    for (int r = 0; r < 3; ++r) models.push_back(build_model(training));
    Outcome outcome;
    run_thread_ranks(3, [&](int r) {
      auto found = train_sharded(training, *models[static_cast<size_t>(r)]);
      if (r == 0) outcome = found;
    });
    runs.push_back(outcome);
  }
  EXPECT_EQ(runs[0].losses, runs[1].losses);
  for (size_t i = 0; i < runs[0].parameters.size(); ++i)
    EXPECT_TRUE(torch::equal(runs[0].parameters[i], runs[1].parameters[i])) << i;
}

}  // namespace
}  // namespace fsdp::test
