// Tests of models on the meta device: where their values come from, and what sets or converts them.

#include <thread>

#include "state/trainee.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

Training<SmallNetImpl> training_in_floats() {
  auto training = small_net_training();
  training.dtype = torch::kFloat;
  training.tolerance = 1e-4;
  training.build = net_with_seen;
  training.steps = 2;
  return training;
}

TEST(MetaInit, StaysOnMetaUntilToEmptyThenIsLoadedAndTrains) {
  const TemporaryFolder folder;
  const auto path = folder / "model.safetensors";
  const auto training = training_in_floats();
  save_safetensors(path, *build_model(training));
  for (const int world : {1, 3}) {
    const auto expected = train_unsharded(training, world);
    run_thread_ranks(world, [&](int) {
      const auto net = meta_init(net_with_seen);
      const auto group = shard_blocks(*net);
      for (const auto& parameter : net->parameters()) EXPECT_TRUE(parameter.is_meta());
      EXPECT_TRUE(net->named_buffers()["seen"].is_meta());
      EXPECT_THAT(error_of<UsageError>([&] { const ForwardScope scope(group); }),
                  AllOf(HasSubstr("parameters on the meta device"), HasSubstr("in total 21, the first is '"),
                        HasSubstr("fsdp::to_empty")));
      for (const auto& act : std::initializer_list<std::function<void()>>{
               [&] { static_cast<void>(group.unshard()); }, [&] { return full_state_dict(group); },
               [&] { return full_tensor(net->head->weight); }, [&] { initialize(group, [] {}); }})
        EXPECT_THAT(error_of<UsageError>(act), HasSubstr("meta device"));

      auto on_ranks = training;
      on_ranks.shard = [&](SmallNetImpl&) { return group; };
      to_empty(group, torch::kCPU);
      for (const auto& parameter : net->parameters()) EXPECT_FALSE(parameter.is_meta());
      load_safetensors(path, group);
      EXPECT_TRUE(torch::equal(net->named_buffers()["seen"], torch::ones({4})));
      expect_same_outcome(expected, train_sharded(on_ranks, *net), training.tolerance);
    });
  }
}

TEST(MetaInit, IsNoPlaceToShardIn) {
  run_thread_ranks(1, [](int) {
    EXPECT_THAT(error_of<UsageError>([] {
                  static_cast<void>(meta_init([] {
                    SmallNet net;
                    fully_shard(*net);
                    return net;
                  }));
                }),
                HasSubstr("inside deferred_init or meta_init"));
  });
}

TEST(MetaInit, ToEmptyLeavesParametersAloneThatHaveValues) {
  run_thread_ranks(2, [](int) {
    auto net = meta_init([] {
      nn::Linear linear(4, 3);
      linear->register_parameter("scale", torch::tensor({2.F, 3.F, 4.F}));
      return linear;
    });
    const auto group = fully_shard(*net);
    to_empty(group, torch::kCPU);
    EXPECT_TRUE(torch::equal(full_tensor(net->named_parameters()["scale"]), torch::tensor({2.F, 3.F, 4.F})));
    EXPECT_TRUE(torch::equal(full_tensor(net->weight), torch::zeros({3, 4})));
  });
}

TEST(MetaInit, DrawsNoRandomNumbers) {
  torch::manual_seed(3);
  const auto expected = torch::rand({4});
  torch::manual_seed(3);
  const auto net = meta_init([] { return std::pair(SmallNet(), nn::LSTM(4, 4)); });
  EXPECT_TRUE(torch::equal(expected, torch::rand({4})));
  EXPECT_TRUE(net.second->parameters().front().is_meta());
}

TEST(Initialize, ComputesParametersOfWhatOthersWereBefore) {
  run_thread_ranks(2, [](int) {
    const auto net = build_alike(net_with_seen);
    const auto group = shard_blocks(*net);
    const auto block = [&](int i) { return net->blocks[static_cast<size_t>(i)]->as<SmallBlock>(); };
    const auto first = full_tensor(block(0)->in->weight), second = full_tensor(block(1)->in->weight);
    initialize(group, [&] {
      const torch::NoGradGuard no_grad;
      block(0)->in->weight.copy_(block(1)->in->weight);
      block(1)->in->weight.fill_(1);
      block(2)->in->weight.copy_(block(0)->in->weight).mul_(2);
      block(1)->out->weight.copy_(block(0)->out->weight);  // the program does not write this source
    });
    EXPECT_TRUE(torch::equal(full_tensor(block(0)->in->weight), second));
    EXPECT_TRUE(torch::equal(full_tensor(block(1)->in->weight), torch::ones_like(second)));
    EXPECT_TRUE(torch::equal(full_tensor(block(2)->in->weight), second * 2));
    EXPECT_TRUE(torch::equal(full_tensor(block(1)->out->weight), full_tensor(block(0)->out->weight)));
    EXPECT_THAT(error_of<UsageError>([&] {
                  initialize(group, [&] {
                    const torch::NoGradGuard no_grad;
                    net->head->weight.mul_(1 / net->head->weight.norm().item<double>());
                  });
                }),
                HasSubstr("fsdp::full_tensor"));
    EXPECT_FALSE(torch::equal(first, second));
    EXPECT_TRUE(torch::equal(full_tensor(block(0)->in->weight), second));
    EXPECT_THAT(error_of<UsageError>([&] {
                  initialize(group, [&] { net->head->weight.set_data(torch::ones_like(net->head->weight)); });
                }),
                AllOf(HasSubstr("'head.weight'"), HasSubstr("set_data"), HasSubstr("copy_")));
    EXPECT_EQ(net->head->weight.size(0), local_rows(net->head->weight).count) << "it shows its rows again";
  });
}

// While the user's code runs, another thread waits for the model's lock, and the user's code waits for that thread.
TEST(Initialize, CallsTheUsersCodeWithoutTheLock) {
  run_thread_ranks(1, [](int) {
    const auto net = build_alike(net_with_seen);
    const auto group = shard_blocks(*net);
    int64_t groups = 0;
    initialize(group, [&] { std::thread([&] { groups = group.stats().groups; }).join(); });
    EXPECT_EQ(groups, group.stats().groups);
  });
}

TEST(To, AnotherDtypeConvertsRowsAndBuffersAndTrainsAsTheUnshardedModel) {
  auto training = small_net_training();
  training.build = net_with_seen;  // trained in double
  training.steps = 2;
  auto on_ranks = training;
  on_ranks.shard = [&](SmallNetImpl& net) {
    const auto group = shard_blocks(net);
    in_scope(group, [&] { return small_net_loss(net, {0, 0, 1}); }).backward();
    EXPECT_THAT(error_of<UsageError>([&] { to(group, torch::kDouble); }), HasSubstr("has a gradient"));
    net.zero_grad();
    to(group, torch::kDouble);
    EXPECT_EQ(net.head->weight.scalar_type(), torch::kDouble);
    EXPECT_EQ(net.named_buffers()["seen"].scalar_type(), torch::kDouble);
    to(group, torch::kCPU);
    EXPECT_THAT(error_of<UsageError>([&] { to(group, torch::kInt); }), HasSubstr("floating point"));
    return group;
  };
  for (const int world : {1, 3}) {
    const auto expected = train_unsharded(training, world);
    run_thread_ranks(world, [&](int) {
      const auto model = build_alike(net_with_seen);
      expect_same_outcome(expected, train_sharded(on_ranks, *model), training.tolerance);
    });
  }
}

// The workflow of FSDP1: only rank 0 has read, drawn or deferred the values; the models of other ranks have none.
TEST(SyncModuleStates, OtherRanksTakeRank0sValuesOnTheMetaDevice) {
  const auto training = training_in_floats();
  const auto as_for_training = [&] { return build_model(training); };
  const FullyShardOptions plain{.sync_module_states = true};
  auto with_init = plain;  // on other ranks, what it computes is discarded
  with_init.param_init_fn = [](nn::Module& module) {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : module.parameters(/*recurse=*/false)) parameter.fill_(rank());
    for (auto& buffer : module.buffers(/*recurse=*/false)) buffer.fill_(rank());
  };
  struct Flow {
    int world;
    bool puts_off;
    FullyShardOptions options;
  };
  for (const auto& [world, puts_off, options] :
       {Flow{1, false, plain}, {3, false, plain}, {2, true, plain}, {3, false, with_init}}) {
    const auto expected = train_unsharded(training, world);
    std::vector<std::shared_ptr<SmallNetImpl>> models{puts_off ? deferred_init(as_for_training) : as_for_training()};
    for (int r = 1; r < world; ++r) models.push_back(meta_init(net_with_seen));
    auto on_ranks = training;
    on_ranks.shard = [&, its = options](SmallNetImpl& net) { return shard_blocks(net, its); };
    run_thread_ranks(world, [&](int r) {
      const auto& net = models[static_cast<size_t>(r)];
      const auto buffer = net->named_buffers()["seen"];
      expect_same_outcome(expected, train_sharded(on_ranks, *net), training.tolerance);
      EXPECT_TRUE(torch::equal(buffer, torch::ones({4}))) << "the same tensor, on rank " << r;
    });
  }
}

TEST(SyncModuleStates, WithoutValuesOnRank0IsAnErrorOnEveryRank) {
  run_thread_ranks(2, [](int r) {
    const auto net = r == 0 ? meta_init(net_with_seen) : net_with_seen();
    EXPECT_THAT(error_of<UsageError>([&] { fully_shard(*net, {.sync_module_states = true}); }),
                AllOf(HasSubstr("sync_module_states"), HasSubstr("on rank 0 'first.weight' is on the meta device")));
    EXPECT_EQ(net->first->weight.is_meta(), r == 0) << "as it was";
  });
}

}  // namespace
}  // namespace fsdp::test
