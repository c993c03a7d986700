// Groups whose rows, gradients and optimizer state are kept in files.

#include <fsdp/optim.h>
#include <gmock/gmock.h>

#include "strategies/micro_batches.h"
#include "support/disk_folder.h"

namespace fsdp::test {
namespace {

using micro_batches::message_of;
using ::testing::HasSubstr;
using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)>;

FullyShardOptions on_disk(const DiskFolder& folder, int64_t limit = 0) {
  FullyShardOptions options;
  options.disk_policy = DiskOffloadPolicy{.folder = folder.path(), .host_limit_bytes = limit};
  return options;
}

Training<SmallNetImpl> training_with(const FullyShardOptions& options, const MakeOptimizer& optimizer = nullptr) {
  auto training = small_net_training(options);
  training.dtype = torch::kFloat;
  training.steps = 3;
  training.optimizer = [](auto parameters) {
    return std::make_unique<optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
  };
  if (optimizer) training.optimizer = optimizer;
  return training;
}

std::shared_ptr<SmallNetImpl> new_net() {
  return build_alike([] { return std::make_shared<SmallNetImpl>(); });
}

void backward_of_a_step(SmallNetImpl& net, const Group& group, int step) {
  torch::Tensor loss;
  {
    ForwardScope scope(group);
    loss = small_net_loss(net, {step, rank() * 2, 2});
  }
  loss.backward();
}

TEST(DiskOffload, TrainsToTheSameBits) {
  const DiskFolder folder;
  for (int world : worlds_up_to(4)) {
    const auto expected = train_on_thread_ranks(training_with({}), world);
    for (const int64_t limit : {0, 3000})
      expect_same_bits(expected, train_on_thread_ranks(training_with(on_disk(folder, limit)), world));
  }
}

TEST(DiskOffload, TrainsToTheSameBitsWithEveryOptimizer) {
  const DiskFolder folder;
  const std::vector<MakeOptimizer> optimizers{
      [](auto p) { return std::make_unique<optim::SGD>(p, torch::optim::SGDOptions(0.05).momentum(0.9)); },
      [](auto p) { return std::make_unique<optim::AdamW>(p, torch::optim::AdamWOptions(1e-2).amsgrad(true)); },
      [](auto p) { return std::make_unique<optim::Adadelta>(p, optim::AdadeltaOptions()); },
      [](auto p) { return std::make_unique<optim::Adam>(p, torch::optim::AdamOptions(1e-2)); },
      [](auto p) { return std::make_unique<optim::RMSprop>(p, torch::optim::RMSpropOptions(1e-3).momentum(0.9)); },
      [](auto p) { return std::make_unique<optim::Adagrad>(p, torch::optim::AdagradOptions(1e-2)); },
      [](auto p) {
        return std::make_unique<optim::AdamW>(
            p, torch::optim::AdamWOptions(1e-2),
            optim::StateOptions{.state_dtype = torch::kBFloat16, .stochastic_rounding = true});
      },
      [](auto p) { return std::make_unique<torch::optim::AdamW>(p, torch::optim::AdamWOptions(1e-2)); }};
  for (const auto& optimizer : optimizers)
    expect_same_bits(train_on_thread_ranks(training_with({}, optimizer), 2),
                     train_on_thread_ranks(training_with(on_disk(folder), optimizer), 2));
}

TEST(DiskOffload, TrainsToTheSameBitsWithEveryStrategyAndClippedGradients) {
  const DiskFolder folder;
  for (const auto strategy :
       {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kShardOptimizer, Strategy::kReplicate}) {
    FullyShardOptions in_memory, in_files = on_disk(folder, 3000);
    in_memory.strategy = in_files.strategy = strategy;
    auto expected = training_with(in_memory), found = training_with(in_files);
    expected.max_norm = found.max_norm = 0.1;
    expect_same_bits(train_on_thread_ranks(expected, 3), train_on_thread_ranks(found, 3));
  }
}

TEST(DiskOffload, CountsBytesOnDiskAndLeavesNothingInTheFolder) {
  const DiskFolder folder;
  run_thread_ranks(2, [&](int) {
    const auto net = new_net();
    const auto group = shard_blocks(*net, on_disk(folder));
    const auto rows = group.stats().disk.current;
    EXPECT_GT(rows, 0);
    EXPECT_EQ(group.stats().rows.current, 0);
    optim::AdamW optimizer(group.parameters(), torch::optim::AdamWOptions(1e-2));
    backward_of_a_step(*net, group, 0);
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

TEST(DiskOffload, KeepsTheFirstGroupsInMemoryAsTheLimitAllows) {
  const DiskFolder folder;
  run_thread_ranks(2, [&](int) {
    const auto net = new_net();
    int64_t of_a_block = 0;
    for (const auto& parameter : net->blocks[0]->parameters()) of_a_block += parameter.numel() * 4 * 4;
    // Two of the three blocks at two ranks, half of each; what is left is too little for the root.
    const auto stats = shard_blocks(*net, on_disk(folder, of_a_block)).stats();
    EXPECT_GT(stats.rows.current, stats.disk.current);
    EXPECT_GT(stats.disk.current, 0);
  });
}

TEST(DiskOffload, GoesOnAfterSetStrategyAndAnotherDtype) {
  const DiskFolder folder;
  run_thread_ranks(2, [&](int) {
    std::vector<std::vector<torch::Tensor>> found;
    for (const bool in_files : {false, true}) {
      const auto net = new_net();
      const auto group = shard_blocks(*net, in_files ? on_disk(folder) : FullyShardOptions());
      optim::AdamW optimizer(group.parameters(), torch::optim::AdamWOptions(1e-2));
      backward_of_a_step(*net, group, 0);
      optimizer.step();
      set_strategy(group, optimizer, Strategy::kShardGradOp);
      backward_of_a_step(*net, group, 1);
      optimizer.step();
      optimizer.zero_grad();
      to(group, torch::kDouble);
      backward_of_a_step(*net, group, 2);
      EXPECT_EQ(group.stats().disk.current > 0, in_files);
      auto& values = found.emplace_back();
      for (const auto& parameter : net->parameters()) values.push_back(full_tensor(parameter));
      for (const auto& parameter : net->parameters()) values.push_back(full_grad(parameter));
    }
    for (size_t i = 0; i < found[0].size(); ++i) EXPECT_TRUE(torch::equal(found[0][i], found[1][i])) << i;
  });
}

void expect_refused(const FullyShardOptions& options, const std::vector<std::string>& parts) {
  run_thread_ranks(2, [&](int r) {
    const auto net = new_net();
    const auto message = message_of([&] { fully_shard(*net, options); });
    EXPECT_THAT(message, HasSubstr(c10::str("[fsdp rank ", r, "/2] fully_shard: ")));
    for (const auto& part : parts) EXPECT_THAT(message, HasSubstr(part));
    EXPECT_EQ(net->first->weight.size(0), 11) << "it was not sharded";
    barrier();
  });
}

TEST(DiskOffload, OfAnotherFolderALimitBelowZeroOrBesideTheOtherOffloadIsRefused) {
  const DiskFolder folder;
  auto options = on_disk(folder);
  options.disk_policy->folder += "/none";
  expect_refused(options, {"DiskOffloadPolicy::folder", "expected an existing folder", folder.path() + "/none"});
  options.disk_policy->folder.clear();
  expect_refused(options, {"DiskOffloadPolicy::folder", "found ''"});
  expect_refused(on_disk(folder, -1), {"host_limit_bytes", "0 or more", "found -1"});
  options = on_disk(folder);
  options.offload_policy = CPUOffloadPolicy{};
  expect_refused(options, {"offload_policy and disk_policy are both set", "Set one of them"});
}

TEST(DiskOffload, WithLimitsThatDifferIsAMismatch) {
  const DiskFolder folder;
  run_thread_ranks(2, [&](int r) { EXPECT_THROW(fully_shard(*new_net(), on_disk(folder, r * 100000)), Mismatch); });
}

}  // namespace
}  // namespace fsdp::test
