// Every rank begins with rank 0's values, which no other rank need have.

#include <gmock/gmock.h>

#include "support/small_net.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::shared_ptr<SmallNetImpl> net_with_seen() {
  auto net = std::make_shared<SmallNetImpl>();
  net->register_buffer("seen", torch::ones({4}));
  return net;
}

std::string error_of_sharding(const std::function<void()>& shard) {
  try {
    shard();
  } catch (const UsageError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

// The flow of FSDP1: rank 0 alone has read or drawn the values. `first` makes its model, the others' has none.
void expect_rank0s_values(const std::function<std::shared_ptr<SmallNetImpl>()>& first,
                          const FullyShardOptions& options) {
  auto training = small_net_training();
  training.dtype = torch::kFloat;
  training.tolerance = 1e-4;
  training.build = net_with_seen;
  for (const int world : worlds_up_to(3)) {
    const auto expected = train_unsharded(training, world);
    std::vector<std::shared_ptr<SmallNetImpl>> models;
    for (int r = 0; r < world; ++r) models.push_back(r == 0 ? first() : meta_init(net_with_seen));
    run_thread_ranks(world, [&](int r) {
      auto on_ranks = training;
      on_ranks.shard = [&](SmallNetImpl& net) { return shard_blocks(net, options); };
      const auto& net = models[static_cast<size_t>(r)];
      const auto buffer = net->named_buffers()["seen"];
      expect_same_outcome(expected, train_sharded(on_ranks, *net), training.tolerance);
      EXPECT_TRUE(torch::equal(buffer, torch::ones({4}))) << "the same tensor, on rank " << r;
    });
  }
}

std::shared_ptr<SmallNetImpl> built_as_for_training() {
  auto training = small_net_training();
  training.dtype = torch::kFloat;
  training.build = net_with_seen;
  return build_model(training);
}

TEST(SyncModuleStates, OtherRanksTakeRank0sValuesOnTheMetaDevice) {
  expect_rank0s_values(built_as_for_training, {.sync_module_states = true});
}

TEST(SyncModuleStates, Rank0MayHavePutItsValuesOff) {
  expect_rank0s_values([] { return deferred_init(built_as_for_training); }, {.sync_module_states = true});
}

TEST(SyncModuleStates, WhatParamInitFnComputesOnOtherRanksDoesNotCount) {
  FullyShardOptions options{.sync_module_states = true};
  options.param_init_fn = [](nn::Module& module) {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : module.parameters(/*recurse=*/false)) parameter.fill_(rank());
    for (auto& buffer : module.buffers(/*recurse=*/false)) buffer.fill_(rank());
  };
  expect_rank0s_values(built_as_for_training, options);
}

TEST(SyncModuleStates, WithoutValuesOnRank0IsAnErrorOnEveryRank) {
  run_thread_ranks(2, [](int r) {
    const auto net = r == 0 ? meta_init(net_with_seen) : net_with_seen();
    EXPECT_THAT(error_of_sharding([&] { fully_shard(*net, {.sync_module_states = true}); }),
                AllOf(HasSubstr("sync_module_states"), HasSubstr("there 'first.weight' is on the meta device")));
    EXPECT_EQ(net->first->weight.is_meta(), r == 0) << "as it was";
  });
}

}  // namespace
}  // namespace fsdp::test
