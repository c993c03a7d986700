// Meshes and strategies that do not fit together, or differ between ranks.

#include "misuse/net.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

// Every rank refuses the options that it makes, and can use the process group afterwards.
void expect_refused(int world, const std::function<FullyShardOptions()>& options_of,
                    const std::vector<std::string>& words) {
  run_thread_ranks(world, [&](int rank) {
    const auto options = options_of();
    nn::Linear linear(4, 3);
    const auto message = message_of([&] { fully_shard(linear, options); });
    EXPECT_THAT(message, HasSubstr(c10::str("[fsdp rank ", rank)));
    EXPECT_THAT(message, HasSubstr("fully_shard: FullyShardOptions"));
    for (const auto& word : words) EXPECT_THAT(message, HasSubstr(word));
    EXPECT_EQ(linear->weight.size(0), 3) << "it was sharded";
    barrier();
  });
}

TEST(AMesh, BesideAProcessGroupIsRefused) {
  expect_refused(2,
                 [] { return FullyShardOptions{.mesh = init_device_mesh(), .process_group = default_process_group()}; },
                 {"a mesh and a process_group", "Leave the process_group out"});
}

TEST(AMesh, OfThreeAxesIsRefused) {
  expect_refused(4,
                 [] { return FullyShardOptions{.mesh = init_device_mesh({1, 2, 2}, {"stage", "replicate", "shard"})}; },
                 {"expected one axis, or the axes 'replicate' and 'shard'", "found 'stage', 'replicate', 'shard'"});
}

TEST(AMesh, WhoseTwoAxesHaveOtherNamesIsRefused) {
  expect_refused(4, [] { return FullyShardOptions{.mesh = init_device_mesh({2, 2}, {"dp", "tp"})}; },
                 {"found 'dp', 'tp'"});
}

TEST(AMesh, ThatReplicatesIsRefusedByAStrategyThatShards) {
  for (const auto strategy : {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kShardOptimizer})
    expect_refused(
        2, [=] { return FullyShardOptions{.strategy = strategy, .mesh = init_device_mesh({2}, {"replicate"})}; },
        {"its one axis is named 'replicate'", c10::str("but ", strategy, " shards")});
}

TEST(AMesh, ThatIsAPartOfAnotherAlongTwoAxesIsRefused) {
  expect_refused(8,
                 [] {
                   const auto mesh = init_device_mesh({2, 2, 2}, {"stage", "replicate", "shard"});
                   return FullyShardOptions{.mesh = mesh[{"replicate", "shard"}]};
                 },
                 {"found one of 4 of 8", "Split them"});
}

TEST(AStrategy, ThatKeepsWholeParametersIsRefusedWithAWishToFreeThem) {
  for (const auto strategy : {Strategy::kShardGradOp, Strategy::kShardOptimizer, Strategy::kReplicate})
    expect_refused(2,
                   [=] { return FullyShardOptions{.strategy = strategy, .reshard_after_forward = Reshard::always()}; },
                   {"reshard_after_forward frees whole parameters", c10::str("with ", strategy, " they stay")});
}

// The message on both of two ranks.
void expect_mismatch(int world, const std::function<FullyShardOptions(int rank)>& options_of, const std::string& one,
                     const std::string& other) {
  std::vector<std::string> messages(static_cast<size_t>(world));
  run_thread_ranks(world, [&](int rank) {
    const auto options = options_of(rank);
    auto linear = build_alike([] { return nn::Linear(4, 3); });
    messages[static_cast<size_t>(rank)] = message_of<Mismatch>([&] { fully_shard(linear, options); });
  });
  EXPECT_THAT(messages, Each(AllOf(HasSubstr(one), HasSubstr(other))));
}

TEST(Ranks, OfDifferentStrategiesAreToldBoth) {
  expect_mismatch(
      2,
      [](int rank) {
        return FullyShardOptions{.strategy = rank == 0 ? Strategy::kShardGradOp : Strategy::kShardOptimizer};
      },
      "rank 0 runs all_gather of 'fully_shard Linear: 2 parameters, 15 elements, kShardGradOp over 2 ranks",
      "rank 1 runs all_gather of 'fully_shard Linear: 2 parameters, 15 elements, kShardOptimizer over 2 ranks");
  expect_mismatch(
      2,
      [](int rank) { return FullyShardOptions{.strategy = rank == 0 ? Strategy::kFullShard : Strategy::kReplicate}; },
      "kFullShard over 2 ranks", "kReplicate over 2 x 1 ranks");
}

TEST(Ranks, OfDifferentMeshesAreToldBoth) {
  expect_mismatch(
      4,
      [](int rank) {
        const auto square = init_device_mesh({2, 2}, {"replicate", "shard"}), row = init_device_mesh();
        return FullyShardOptions{.mesh = rank == 0 ? square : row};
      },
      "kFullShard over 2 x 2 ranks", "kFullShard over 4 ranks");
}

}  // namespace
}  // namespace fsdp::test
