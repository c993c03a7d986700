// Tests of parts of a model that are called alone, left unused, or half frozen.

#include "zoo/zoo.h"

namespace fsdp::test {
namespace {

struct PartsNet : nn::Module {
  nn::Linear in = register_module("in", nn::Linear(4, 6));
  nn::LayerNorm norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({6})));
  nn::Linear spare = register_module("spare", nn::Linear(6, 6)), head = register_module("head", nn::Linear(6, 3));
  Tensor scale = register_parameter("scale", torch::tensor(1.5));
  Tensor features(const Batch& batch) { return norm->forward(torch::tanh(in->forward(samples(batch, {4})))) * scale; }
  Tensor forward(const Batch& batch) { return distance_from_targets(head->forward(features(batch)), batch); }
};

// Shards the layers after `in` as one param group; the root's group has the scale.
void expect_same_of_parts(Run<PartsNet> run) {
  expect_same_sharded<PartsNet>(std::move(run), [](nn::Module& module, const FullyShardOptions& options) {
    auto& net = dynamic_cast<PartsNet&>(module);
    fully_shard(*net.in, options);
    fully_shard(std::vector<nn::Module*>{net.norm.get(), net.spare.get(), net.head.get()}, options);
    fully_shard(module, options);
  });
}

// Computes the gradients of the features chunk by chunk. Each chunk has its own scope, and a backward of the head
// alone.
Tensor backward_in_chunks(PartsNet& net, const Role& role, const Batch& batch) {
  const auto features = role.whole(net, [&] { return net.features(batch); });
  const auto cut = features.detach().requires_grad_();
  auto sum = torch::zeros({}, torch::kDouble);
  for (const auto& chunk : cut.chunk(2)) {
    const auto loss = [&] { return torch::tanh(net.head->forward(chunk)).square().mean() / 2; };
    sum += backward_of(role.whole(*net.head, loss));
  }
  features.backward(cut.grad());
  return sum;
}

// Gradients accumulate over one micro-batch, over two while the list stays whole, and over three.
TEST(ZooParts, OfAListCalledInScopesOfTheirOwnEqualTheUnshardedRun) {
  expect_same_of_parts([=](PartsNet& net, const Role& role) {
    const auto keep_whole = [&](bool keeps) {
      if (!role.is_sharded()) return;
      const auto tail = group_of(*net.head);
      tail.set_reshard_after_forward(!keeps);
      tail.set_reshard_after_backward(!keeps);
      if (!keeps) tail.reshard();
    };
    return descend(net.parameters(), [&](int step) {
      auto sum = torch::zeros({}, torch::kDouble);
      for (int micro = 0; micro <= step; ++micro) {
        if (role.is_sharded()) group_of(net).set_requires_gradient_sync(micro == step);
        if (step == 1) keep_whole(true);
        sum += backward_in_chunks(net, role, role.batch(3 * step + micro));
        if (step == 1) keep_whole(false);
      }
      EXPECT_FALSE(net.spare->weight.grad().defined());
      return sum;
    });
  });
}

TEST(ZooParts, OfAListThatAreNeverCalledKeepNoGradient) {
  expect_same_of_parts([](PartsNet& net, const Role& role) {
    auto losses = train(net, role, [](PartsNet& m, const Batch& batch) {
      return m.features(batch).square().mean() + m.features({batch.step + 7, batch.first, batch.count}).tanh().mean();
    });
    EXPECT_TRUE(net.norm->weight.grad().defined());
    EXPECT_FALSE(net.head->weight.grad().defined());
    EXPECT_FALSE(net.spare->weight.grad().defined());
    return losses;
  });
}

TEST(ZooParts, WhoseOutputIsUsedInSomeStepsOnlyEqualTheUnshardedRun) {
  expect_same_of_parts([](PartsNet& net, const Role& role) {
    auto losses = train(net, role, [](PartsNet& m, const Batch& batch) {
      auto features = m.features(batch);
      const auto more = m.spare->forward(features);
      if (batch.step < 2) features = features + more;
      return distance_from_targets(m.head->forward(features), batch);
    });
    EXPECT_FALSE(net.spare->weight.grad().defined());
    return losses;
  });
}

// The program calls a child before its model, and again after it.
TEST(ZooParts, CalledAloneBeforeAndAfterTheModelEqualTheUnshardedRun) {
  expect_same_of_parts(stepping<PartsNet>([](PartsNet& net, const Role& role, int step) {
    auto sum = torch::zeros({}, torch::kDouble);
    const auto alone = [&] { return net.in->forward(samples(role.batch(3 * step), {4})).square().mean(); };
    for (const bool is_alone : {true, false, true}) {
      sum += backward_of(is_alone ? role.whole(*net.in, alone)
                                  : role.whole(net, [&] { return net.forward(role.batch(3 * step + 1)); }));
      EXPECT_EQ(net.in->weight.size(0), local_rows(net.in->weight).count) << "rows after backward";
    }
    return sum;
  }));
}

TEST(ZooParts, OfWhichSomeWaitForTheirReductionEqualTheUnshardedRun) {
  for (const bool root_waits : {true, false})
    expect_same_of_parts([=](PartsNet& net, const Role& role) {
      descend(
          net.parameters(),
          [&](int step) {
            for (int micro = 0; micro < 3; ++micro) {
              if (role.is_sharded()) {
                const auto waiting = root_waits ? group_of(net) : group_of(*net.in);
                waiting.set_requires_gradient_sync(micro == 2, /*recurse=*/false);
              }
              role.whole(net, [&] { return net.forward(role.batch(3 * step + micro)); }).backward();
              EXPECT_TRUE(net.head->weight.grad().defined());
              EXPECT_EQ(net.scale.grad().defined(), !role.is_sharded() || !root_waits || micro == 2);
              EXPECT_EQ(net.in->weight.grad().defined(), !role.is_sharded() || root_waits || micro == 2);
            }
            return Tensor();
          },
          /*steps=*/2);
      return Values{role.gradient(net.in->weight), role.gradient(net.scale)};
    });
}

// The param group has frozen and trained parameters, and one forward uses it three times.
struct HalfFrozen : nn::Module {
  nn::Linear in = register_module("in", nn::Linear(4, 5)), again = register_module("again", nn::Linear(5, 5));
  HalfFrozen() {
    again->weight.set_requires_grad(false);
    in->bias.set_requires_grad(false);
  }
  Tensor forward(const Tensor& x) {
    auto h = torch::tanh(in->forward(x));
    for (int i = 0; i < 3; ++i) h = torch::tanh(again->forward(h));
    return h;
  }
};

TEST(ZooParts, ThatAreHalfFrozenAndUsedThriceEqualTheUnshardedRun) {
  for (auto* shard : {shard_children_then_root, shard_as_one_group})
    expect_equals_unsharded(trained<HalfFrozen>(shard));
}

}  // namespace
}  // namespace fsdp::test
