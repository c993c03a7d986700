// Tests of options, meshes, strategies and precisions that are impossible or contradict each other.

#include <torch/script.h>

#include "misuse/net.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

using Options = FullyShardOptions;
using Policy = MixedPrecisionPolicy;

struct BadOptions {
  Options options;
  Words words;
};

// Expects that every rank refuses the options that `make` returns, leaves the module as it was, and can use the process
// group afterwards.
void expect_options_refused(int world, const std::function<std::vector<BadOptions>()>& make) {
  run_thread_ranks(world, [&](int) {
    for (auto& bad : make()) {
      SCOPED_TRACE(bad.words[0]);
      nn::Linear linear(4, 3);
      bad.words.emplace_back(bad.options.mp_policy ? "@fully_shard: MixedPrecisionPolicy::"
                                                   : "@fully_shard: FullyShardOptions");
      expect_error([&] { fully_shard(*linear, bad.options); }, bad.words);
      EXPECT_EQ(linear->weight.size(0), 3) << "it was sharded";
    }
    barrier();
  });
}

Options computing_in(Policy policy) { return {.mp_policy = std::move(policy)}; }

TEST(Options, ThatCannotBeAreRefused) {
  const auto keeps_all = [](const nn::Module&, const auto&) { return true; };
  expect_options_refused(2, [&] {
    std::vector<BadOptions> all{
        {{.offload_policy = CPUOffloadPolicy{}}, {"offload_policy", "is on the CPU", "For a model on the CPU"}},
        {{.device = c10::Device(c10::kCUDA, 0)}, {"device", "found cuda:0", "cuda devices here: 0"}},
        {{.auto_wrap_policy = AutoWrapPolicy(nullptr, [](const WrapCandidate&) { return true; })},
         {"auto_wrap_policy", "Set 'wraps' too"}},
        {{.ignored_params = {torch::ones({9, 9})}}, {"ignored_params", "sizes [9, 9]", "not a parameter under Linear"}},
        {{.ignored_params = {torch::Tensor()}}, {"ignored_params", "undefined"}},
        {{.mesh = init_device_mesh(), .process_group = default_process_group()},
         {"a mesh and a process_group", "Leave the process_group out"}},
        {computing_in({.param_dtype = torch::kChar}), {"param_dtype", "found Char"}},
        {computing_in({.param_dtype = torch::kFloat8_e4m3fn}), {"param_dtype", "Float8_e4m3fn"}},
        {computing_in({.reduce_dtype = torch::kInt}), {"reduce_dtype", "found Int"}},
        {computing_in({.output_dtype = torch::kBool}), {"output_dtype", "found Bool"}},
        {computing_in({.keeps_precision = keeps_all}), {"Set param_dtype or reduce_dtype"}}};
    for (const int ranks : {0, -1, 3, 4})
      all.push_back({{.reshard_after_forward = Reshard::within(ranks)},
                     {"reshard_after_forward", "divides the 2 ranks", c10::str("found ", ranks)}});
    for (const auto strategy : {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kShardOptimizer})
      all.push_back({{.strategy = strategy, .mesh = init_device_mesh({2}, {"replicate"})},
                     {"its one axis is named 'replicate'", c10::str("but ", strategy, " shards")}});
    for (const auto strategy : {Strategy::kShardGradOp, Strategy::kShardOptimizer, Strategy::kReplicate})
      all.push_back(
          {{.strategy = strategy, .reshard_after_forward = Reshard::always()},
           {"reshard_after_forward frees whole parameters", c10::str("the strategy ", strategy, " keeps them")}});
    return all;
  });
}

TEST(AMesh, OfOtherAxesThanReplicateAndShardIsRefused) {
  expect_options_refused(4, [] {
    return std::vector<BadOptions>{
        {{.mesh = init_device_mesh({1, 2, 2}, {"stage", "replicate", "shard"})},
         {"expected one axis, or the axes 'replicate' and 'shard'", "found 'stage', 'replicate', 'shard'"}},
        {{.mesh = init_device_mesh({2, 2}, {"dp", "tp"})}, {"found 'dp', 'tp'"}}};
  });
  expect_options_refused(8, [] {
    const auto mesh = init_device_mesh({2, 2, 2}, {"stage", "replicate", "shard"});
    return std::vector<BadOptions>{
        {{.mesh = mesh[{"replicate", "shard"}]}, {"found one with 4 of 8", "Split the process group"}}};
  });
}

TEST(Options, OfAListOrAScriptModuleThatWrapsAreRefused) {
  const FullyShardOptions wraps{.auto_wrap_policy = size_based_auto_wrap_policy(1)};
  run_thread_ranks(2, [&](int) {
    nn::Linear a(2, 2), b(2, 2);
    expect_error([&] { fully_shard({a.get(), b.get()}, wraps); }, {"auto_wrap_policy", "found list of 2 modules"});
    torch::jit::Module script("Scale");
    script.register_parameter("weight", torch::ones({4, 2}), /*is_buffer=*/false);
    expect_error([&] { fully_shard(script, wraps); }, {"auto_wrap_policy"});
    expect_error([&] { fully_shard(std::vector<nn::Module*>{}); }, {"at least one module, found an empty list"});
  });
}

TEST(Numbers, ThatCannotBeAreRefused) {
  const auto divided = [](double factor) {
    return [=](auto& t) { Group(t.group).set_gradient_divide_factor(factor); };
  };
  expect_refused({
      {kOutside, {"expected a finite factor above 0"}, {divided(0)}},
      {kOutside, {"found nan"}, {divided(NAN), [](auto& t) { clip_grad_norm_(t.group, NAN); }}},
      {kOutside, {"found inf"}, {divided(INFINITY)}},
      {kOutside, {"expected max_norm >= 0, found -1"}, {[](auto& t) { clip_grad_norm_(t.group, -1.0); }}},
      {kOutside, {"expected norm_type > 0"}, {[](auto& t) { clip_grad_norm_(t.group, 1.0, 0); }}},
  });
}

TEST(ReshardWithin, OneRankIsNeverAndAllAreAlways) {
  run_thread_ranks(2, [&](int) {
    const auto gathers = [](Reshard reshard) {
      nn::Sequential net;
      for (int i = 0; i < 5; ++i) net->push_back(nn::Linear(nn::LinearOptions(4, 4).bias(false)));
      auto model = fully_shard(net, {.reshard_after_forward = reshard,
                                     .auto_wrap_policy = module_wrap_policy<nn::LinearImpl>(),
                                     .sync_module_states = true});
      model(torch::ones({2, 4})).sum().backward();
      return model.stats().gathers;
    };
    const auto never = gathers(Reshard::never()), always = gathers(Reshard::always());
    EXPECT_EQ(gathers(Reshard::within(1)), never);
    EXPECT_EQ(gathers(Reshard::within(2)), always);
    if (test_backend() != "shm") {
      EXPECT_GT(always, never);
    }
  });
}

TEST(MisusePrecision, WritingRoundedValuesBackIsRefused) {
  run_thread_ranks(2, [](int) {
    nn::Linear linear = linear_alike(4, 3);
    const auto values = linear->weight.detach().clone();
    const auto model = fully_shard(linear, {.mp_policy = Policy{.param_dtype = torch::kBFloat16}});
    {
      SummonFullParams whole(model);
      expect_error([&] { whole.write_back(); }, {"'weight' are BFloat16", "which are Float", "LocalRows"});
    }
    EXPECT_TRUE(torch::equal(full_tensor(linear->weight), values));
  });
}

}  // namespace
}  // namespace fsdp::test
