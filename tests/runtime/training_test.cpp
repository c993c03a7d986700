// Sharded training against the unsharded oracle: the ways to group and to reshard.

#include "support/small_net.h"

namespace fsdp::test {
namespace {

Training<SmallNetImpl> five_steps(std::optional<Reshard> reshard = std::nullopt) {
  FullyShardOptions options;
  options.reshard_after_forward = reshard;
  auto training = small_net_training(options);
  training.steps = 5;
  return training;
}

TEST(Training, BlocksAndRootEqualTheUnshardedRun) {
  for (int world : worlds_up_to(8)) expect_training_equals_unsharded(five_steps(), world);
}

TEST(Training, ReshardAlwaysOrNeverEqualsTheUnshardedRun) {
  for (int world : worlds_up_to(3))
    for (const auto& reshard : {Reshard::always(), Reshard::never()})
      expect_training_equals_unsharded(five_steps(reshard), world);
}

TEST(Training, OneGroupEqualsTheUnshardedRun) {
  auto training = five_steps();
  training.shard = [](SmallNetImpl& net) { return fully_shard(static_cast<torch::nn::Module&>(net)); };
  for (int world : worlds_up_to(4)) expect_training_equals_unsharded(training, world);
}

TEST(Training, TwoSubgroupsAtOnceEqualTheUnshardedRunsOfTheirModels) {
  auto one = five_steps(), other = five_steps();
  other.build = [] { return std::make_shared<SmallNetImpl>(/*dim=*/7, /*depth=*/2); };
  other.steps = 6;
  const std::vector<Training<SmallNetImpl>> trainings{one, other};
  std::vector<Outcome> expected;
  for (const auto& training : trainings) expected.push_back(train_unsharded(training, 2));
  std::vector<std::shared_ptr<SmallNetImpl>> models;  // built here: threads share the random state
  for (size_t r = 0; r < 4; ++r) models.push_back(build_model(trainings[r % 2]));
  run_thread_ranks(4, [&](int r) {
    const auto which = static_cast<size_t>(r % 2);
    const ThreadProcessGroupGuard guard(default_process_group()->split({{0, 2}, {1, 3}}, "models"));
    const auto found = train_sharded(trainings[which], *models[static_cast<size_t>(r)]);
    expect_same_outcome(expected[which], found, trainings[which].tolerance);
  });
}

TEST(Training, Float32StaysWithinItsRounding) {
  auto training = five_steps();
  in_float32(training);
  for (int world : worlds_up_to(4)) expect_training_equals_unsharded(training, world);
}

TEST(Training, GivesTheSameBitsInTwoRunsAndOverSharedMemoryAndGloo) {
  auto training = five_steps();
  training.dtype = torch::kFloat;
  for (int world : worlds_up_to(8)) {
    SCOPED_TRACE("world " + std::to_string(world));
    const auto expected = train_on_thread_ranks(training, world, {.backend = "gloo"});
    for (const auto* backend : {"gloo", "shm"})
      expect_same_bits(expected, train_on_thread_ranks(training, world, {.backend = backend}));
  }
}

}  // namespace
}  // namespace fsdp::test
