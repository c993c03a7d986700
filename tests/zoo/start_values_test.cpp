// Tests of ranks whose models have different initial values. This is an error, unless all ranks take the values of rank
// 0.

#include "misuse/net.h"
#include "support/recorded_ranks.h"
#include "zoo/zoo.h"

namespace fsdp::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(StartValues, ThatDifferAreFoundOnEveryRankByTheFirstParameter) {
  run_thread_ranks(3, [](int r) {
    const auto model = build_alike([] { return build_model(small_training()); });
    auto& net = *model;
    torch::NoGradGuard no_grad;
    if (r == 2) net.mid->bias[3] += 1e-12;
    if (r == 1) net.down->weight.neg_();
    for (int again = 0; again < 2; ++again)
      EXPECT_THAT(message_of<Mismatch>([&] { fully_shard(net); }),
                  AllOf(HasSubstr(c10::str("[fsdp rank ", r,
                                           "/3] fully_shard: parameter 'mid.bias' has different values on "
                                           "rank 2 than on rank 0 (2 of 10 parameters differ")),
                        HasSubstr("torch::manual_seed"), HasSubstr("FullyShardOptions::sync_module_states")));
    EXPECT_EQ(net.mid->weight.size(0), 6) << "it was not sharded";
    net.mid->bias.zero_();
    net.down->weight.zero_();
    EXPECT_EQ(fully_shard(net).stats().groups, 1) << "the ranks can go on";
  });
}

TEST(StartValues, OfAnyNumberOfParametersAreComparedByOneHash) {
  Recorded recorded(3);
  run_thread_ranks_with(3, recorded.options, [&](int r) {
    fully_shard(*build_alike([] { return build_model(small_training()); }));
    const auto compared = recorded.log(r).entries("all_reduce(min)");
    ASSERT_EQ(compared.size(), 1U);
    EXPECT_EQ(compared.front().bytes, 16U);
    EXPECT_EQ(recorded.count(r, "all_gather"), 0);
  });
}

// Has parameters and buffers of several dtypes, all of which are drawn from the generator.
struct StartMixed : nn::Module {
  nn::Linear in = register_module("in", nn::Linear(4, 6)), out = register_module("out", nn::Linear(6, 3));
  nn::BatchNorm1d norm = register_module("norm", nn::BatchNorm1d(6));
  Tensor table = register_parameter("table", torch::randint(9, {5, 3}), /*requires_grad=*/false);
  Tensor own = register_parameter("own", torch::randn({2}));
  Tensor mask = register_buffer("mask", torch::rand({7}) > 0.5);
  Tensor half = register_buffer("half", torch::randn({3, 1}).to(torch::kBFloat16));
  Tensor scalar = register_buffer("scalar", torch::randn({}).to(torch::kDouble));
  StartMixed() {
    norm->running_mean.normal_();
    norm->num_batches_tracked.fill_(torch::randint(99, {1}).item<int64_t>());
  }
};

Group shard_nested(StartMixed& m, FullyShardOptions options) {
  fully_shard(*m.in, options);
  options.ignored_params = {m.own};
  return fully_shard(static_cast<nn::Module&>(m), options);
}

Group shard_by_policy(StartMixed& m, FullyShardOptions options) {
  options.auto_wrap_policy = module_wrap_policy<nn::LinearImpl>();
  options.ignored_params = {m.own};
  return fully_shard(static_cast<nn::Module&>(m), options);
}

TEST(StartValues, OfRank0AreEveryRanksWhereAskedFor) {
  for (auto shard_model : {shard_nested, shard_by_policy}) {
    std::vector<std::shared_ptr<StartMixed>> models;
    for (uint64_t r = 0; r < 3; ++r) {
      torch::manual_seed(7 + r);
      models.push_back(std::make_shared<StartMixed>());
    }
    const auto parameters = copies_of(models[0]->parameters()), buffers = copies_of(models[0]->buffers());
    run_thread_ranks(3, [&](int r) {
      auto& model = *models[static_cast<size_t>(r)];
      const auto own = model.own.detach().clone();
      const auto buffers_of_mine = model.buffers();
      shard_model(model, {.sync_module_states = true});
      for (size_t i = 0; i < parameters.size(); ++i) {
        if (model.parameters()[i].is_same(model.own)) continue;
        EXPECT_TRUE(torch::equal(parameters[i], full_tensor(model.parameters()[i]))) << "parameter " << i;
      }
      for (size_t i = 0; i < buffers.size(); ++i) {
        EXPECT_TRUE(torch::equal(buffers[i], model.buffers()[i])) << "buffer " << i;
        EXPECT_TRUE(buffers_of_mine[i].is_same(model.buffers()[i]));
      }
      EXPECT_TRUE(torch::equal(own, model.own)) << "ignored parameters stay each rank's own";
    });
  }
}

TEST(StartValues, ABufferThatCannotTakeThemIsRefused) {
  run_thread_ranks(2, [](int r) {
    auto linear = build_alike([] { return nn::Linear(4, 3); });
    linear->register_buffer("wide", torch::zeros({1}).expand({5}));
    EXPECT_THAT(message_of([&] { fully_shard(*linear, {.sync_module_states = true}); }),
                AllOf(HasSubstr(c10::str("[fsdp rank ", r, "/2] fully_shard: ")), HasSubstr("buffer 'wide'"),
                      HasSubstr("sync_module_states"), HasSubstr("clone()")));
    EXPECT_EQ(fully_shard(linear).stats().groups, 1);
  });
}

}  // namespace
}  // namespace fsdp::test
