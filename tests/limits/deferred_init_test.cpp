// Tests of models that are built without memory. The ranks are processes, each with its own random numbers.

#include <gmock/gmock.h>

#include "support/backend.h"
#include "support/process_ranks.h"
#include "support/small_net.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using ::testing::HasSubstr;

void init_by_sizes(nn::Module& module) {
  if (auto* linear = module.as<nn::Linear>()) {
    nn::init::xavier_uniform_(linear->weight);
    if (linear->bias.defined()) nn::init::normal_(linear->bias, 0, 0.1);
  }
  if (auto* norm = module.as<nn::LayerNorm>()) norm->reset_parameters();
}

SmallNet initialised_net() {
  SmallNet net;
  torch::manual_seed(9);
  net->apply(init_by_sizes);
  return net;
}

void expect_equal(const SmallNet& expected, const SmallNet& found) {
  for (const auto& item : expected->named_parameters())
    if (!torch::equal(item.value(), full_tensor(found->named_parameters()[item.key()])))
      throw std::runtime_error("values differ: " + item.key());
}

template <class Build>
auto with_seed(const Build& build) {
  torch::manual_seed(4);
  return build();
}

void build_deferred() {
  auto ordinary = with_seed([] { return SmallNet(); });
  const auto next = torch::rand({3});
  auto model = with_seed([] { return deferred_init([] { return SmallNet(); }); });
  if (!torch::equal(next, torch::rand({3}))) throw std::runtime_error("random numbers differ after deferred_init");
  const auto state = torch::globalContext().defaultGenerator(torch::kCPU).get_state();
  torch::set_default_dtype(caffe2::TypeMeta::Make<double>());  // deferred operators keep their own dtype
  shard_blocks(*model);
  torch::set_default_dtype(caffe2::TypeMeta::Make<float>());
  if (!torch::equal(state, torch::globalContext().defaultGenerator(torch::kCPU).get_state()))
    throw std::runtime_error("fully_shard drew random numbers");
  expect_equal(ordinary, model);
}

void initialise_after_sharding() {
  auto ordinary = initialised_net();
  auto model = meta_init([] { return SmallNet(); });
  const auto group = shard_blocks(*model);
  to_empty(group, torch::kCPU);
  torch::manual_seed(9);
  initialize(group, [&] { model->apply(init_by_sizes); });
  expect_equal(ordinary, model);

  // Values from before count if they are not overwritten.
  const auto change = [](SmallNet net) {
    const torch::NoGradGuard no_grad;
    net->first->weight[1].mul_(2);
  };
  change(ordinary);
  initialize(group, [&] { change(model); });
  expect_equal(ordinary, model);
}

void initialise_in_fully_shard() {
  auto model = meta_init([] { return SmallNet(); });
  torch::manual_seed(9);
  fully_shard(model, {.param_init_fn = init_by_sizes});
  auto ordinary = SmallNet();
  torch::manual_seed(9);
  // Children come first, the last one before the others.
  init_by_sizes(*ordinary->head);
  for (int i = 2; i >= 0; --i) {
    auto& block = *ordinary->blocks[i]->as<SmallBlock>();
    init_by_sizes(*block.out), init_by_sizes(*block.in), init_by_sizes(*block.norm);
  }
  init_by_sizes(*ordinary->first);
  expect_equal(ordinary, model);
}

PROCESS_CASE(initialise) {
  init_process_group({.backend = test_backend()});
  build_deferred();
  initialise_after_sharding();
  initialise_in_fully_shard();
}

PROCESS_CASE(initialise_from_two_seeds) {
  init_process_group({.backend = test_backend(), .timeout = std::chrono::seconds(20)});
  SmallNet net;
  const auto group = fully_shard(net);
  torch::manual_seed(rank());
  initialize(group, [&] { init_by_sizes(*net->head); });
}

// Values are deferred, on the meta device and in fully_shard.
TEST(DeferredProcesses, HaveTheValuesOfOrdinaryConstruction) {
  for (const int world : {1, 3}) {
    ProcessRanks ranks("initialise", {.world_size = world});
    for (int r = 0; r < world; ++r) EXPECT_EQ(ranks.wait(r).exit_code, 0) << ranks.wait(r).output;
  }
}

TEST(DeferredProcesses, FromTwoSeedsAreAMismatch) {
  ProcessRanks ranks("initialise_from_two_seeds", {.world_size = 2});
  for (int r : {0, 1}) {
    EXPECT_EQ(ranks.wait(r).exit_code, 1);
    EXPECT_THAT(ranks.wait(r).output, HasSubstr("random numbers"));
  }
}

}  // namespace
}  // namespace fsdp::test
