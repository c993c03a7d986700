// Tests of param groups whose rows, gradients and optimizer state are in files.

#include <gmock/gmock.h>

#include "optim/every_optimizer.h"
#include "support/disk_folder.h"
#include "support/small_net.h"

namespace fsdp::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)>;

FullyShardOptions on_disk(const DiskFolder& folder) {
  FullyShardOptions options;
  options.disk_policy = DiskOffloadPolicy{.folder = folder.path()};
  return options;
}

Training<SmallNetImpl> training_with(const FullyShardOptions& options, const MakeOptimizer& optimizer = nullptr) {
  auto training = small_net_training(options);
  training.dtype = torch::kFloat;
  training.steps = 2;
  training.optimizer = [](auto parameters) {
    return std::make_unique<optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
  };
  if (optimizer) training.optimizer = optimizer;
  return training;
}

TEST(DiskOffload, TrainsToTheSameBits) {
  const DiskFolder folder;
  for (int world : worlds_up_to(4))
    expect_same_bits(train_on_thread_ranks(training_with({}), world),
                     train_on_thread_ranks(training_with(on_disk(folder)), world));
}

TEST(DiskOffload, TrainsToTheSameBitsWithEveryOptimizer) {
  const DiskFolder folder;
  std::vector<MakeOptimizer> optimizers{
      [](auto p) {
        return std::make_unique<optim::AdamW>(
            p, torch::optim::AdamWOptions(1e-2),
            optim::StateOptions{.state_dtype = torch::kBFloat16, .stochastic_rounding = true});
      },
      [](auto p) { return std::make_unique<torch::optim::AdamW>(p, torch::optim::AdamWOptions(1e-2)); }};
  for (const auto& it : every_optimizer())
    optimizers.emplace_back([make = it.make](auto p) { return make(p, {}).torchs; });
  for (const auto& optimizer : optimizers)
    expect_same_bits(train_on_thread_ranks(training_with({}, optimizer), 2),
                     train_on_thread_ranks(training_with(on_disk(folder), optimizer), 2));
}

TEST(DiskOffload, TrainsToTheSameBitsWithEveryStrategyAndClippedGradients) {
  const DiskFolder folder;
  for (const auto strategy :
       {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kShardOptimizer, Strategy::kReplicate}) {
    FullyShardOptions in_memory, in_files = on_disk(folder);
    in_memory.strategy = in_files.strategy = strategy;
    auto expected = training_with(in_memory), found = training_with(in_files);
    expected.max_norm = found.max_norm = 0.1;
    expect_same_bits(train_on_thread_ranks(expected, 3), train_on_thread_ranks(found, 3));
  }
}

TEST(DiskOffload, CountsBytesOnDiskOfTheGroupsThatAreThereAndLeavesNothingInTheFolder) {
  const DiskFolder folder;
  run_thread_ranks(2, [&](int) {
    {
      const auto net = alike_small_net();
      const auto of_a_block = fully_shard(*net->blocks[0], on_disk(folder)).stats();
      EXPECT_GT(of_a_block.disk.current, 0);
      EXPECT_EQ(of_a_block.rows.current, 0);
      const auto stats = fully_shard(*net).stats();
      EXPECT_EQ(stats.disk.current, of_a_block.disk.current) << "the others are in memory";
      EXPECT_GT(stats.rows.current, 0);
    }
    const auto net = alike_small_net();
    const auto group = shard_blocks(*net, on_disk(folder));
    const auto rows = group.stats().disk.current;
    EXPECT_GT(rows, 0);
    EXPECT_EQ(group.stats().rows.current, 0);
    optim::AdamW optimizer(group.parameters(), torch::optim::AdamWOptions(1e-2));
    own_loss(*net, group, 0).backward();
    EXPECT_EQ(group.stats().disk.current, 2 * rows);
    EXPECT_EQ(group.stats().gradient.current, 0);
    optimizer.step();
    EXPECT_GT(group.stats().disk.current, 3 * rows);
    EXPECT_EQ(group.stats().optimizer.current, 0);
    optimizer.zero_grad();
    EXPECT_LE(group.stats().disk.current, 3 * rows);
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  });
}

TEST(DiskOffload, GoesOnAfterSetStrategyAndAnotherDtype) {
  const DiskFolder folder;
  run_thread_ranks(2, [&](int) {
    std::vector<std::vector<torch::Tensor>> found;
    for (const bool in_files : {false, true}) {
      const auto net = alike_small_net();
      const auto group = shard_blocks(*net, in_files ? on_disk(folder) : FullyShardOptions());
      optim::AdamW optimizer(group.parameters(), torch::optim::AdamWOptions(1e-2));
      own_loss(*net, group, 0).backward();
      optimizer.step();
      set_strategy(group, optimizer, Strategy::kShardGradOp);
      own_loss(*net, group, 1).backward();
      optimizer.step();
      optimizer.zero_grad();
      to(group, torch::kDouble);
      own_loss(*net, group, 2).backward();
      EXPECT_EQ(group.stats().disk.current > 0, in_files);
      auto& values = found.emplace_back();
      for (const auto& parameter : net->parameters()) values.push_back(full_tensor(parameter));
      for (const auto& parameter : net->parameters()) values.push_back(full_grad(parameter));
    }
    for (size_t i = 0; i < found[0].size(); ++i) EXPECT_TRUE(torch::equal(found[0][i], found[1][i])) << i;
  });
}

TEST(DiskOffload, OfAnotherFolderOrBesideTheOtherOffloadIsRefused) {
  const DiskFolder folder;
  auto in_none = on_disk(folder), nowhere = on_disk(folder), twice = on_disk(folder);
  in_none.disk_policy->folder += "/none";
  nowhere.disk_policy->folder.clear();
  twice.offload_policy = CPUOffloadPolicy{};
  const auto says = [](const auto&... words) { return AllOf(HasSubstr(words)...); };
  const std::pair<FullyShardOptions, testing::Matcher<std::string>> refusals[] = {
      {in_none, says("DiskOffloadPolicy::folder", "there is no folder", folder.path() + "/none")},
      {nowhere, says("DiskOffloadPolicy::folder", "there is no folder ''")},
      {twice, says("offload_policy and disk_policy are both set", "Set only one of them")}};
  run_thread_ranks(2, [&](int r) {
    for (const auto& [options, words] : refusals) {
      const auto net = alike_small_net();
      const auto shard = [&net, &o = options] { fully_shard(*net, o); };
      EXPECT_THAT(shard, testing::ThrowsMessage<UsageError>(
                             AllOf(HasSubstr(c10::str("[fsdp rank ", r, "/2] fully_shard: ")), words)));
      EXPECT_EQ(net->first->weight.size(0), 11) << "it was not sharded";
    }
    barrier();
    EXPECT_THROW(fully_shard(*alike_small_net(), r == 0 ? FullyShardOptions() : on_disk(folder)), Mismatch);
  });
}

}  // namespace
}  // namespace fsdp::test
