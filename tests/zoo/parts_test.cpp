// Parts of a model that are called alone, are left unused, or are half frozen.

#include "support/oracle.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

struct PartsNet : nn::Module {
  nn::Linear in{4, 6}, spare{6, 6};
  nn::LayerNorm norm{nn::LayerNormOptions({6})};
  nn::Linear head{6, 3};
  torch::Tensor scale = register_parameter("scale", torch::tensor(1.5));
  PartsNet() {
    register_module("in", in);
    register_module("norm", norm);
    register_module("spare", spare);
    register_module("head", head);
  }
  torch::Tensor features(const Batch& batch) {
    return norm->forward(torch::tanh(in->forward(samples(batch, {4})))) * scale;
  }
};

// The layers after `in` are one group; the root has the scale.
Program<PartsNet> parts_program(std::function<Values(PartsNet&, const Role&)> run) {
  Program<PartsNet> program;
  program.build = [] { return std::make_shared<PartsNet>(); };
  program.shard = [](PartsNet& net, const FullyShardOptions& options) {
    fully_shard(*net.in, options);
    fully_shard(std::vector<nn::Module*>{net.norm.get(), net.spare.get(), net.head.get()}, options);
    fully_shard(static_cast<nn::Module&>(net), options);
  };
  program.run = std::move(run);
  return program;
}

// Gradients of the features come chunk by chunk, each from a scope and a backward of the head alone.
torch::Tensor backward_in_chunks(PartsNet& net, const Role& role, const Batch& batch) {
  const auto features = role.whole(net, [&] { return net.features(batch); });
  const auto cut = features.detach().requires_grad_();
  auto sum = torch::zeros({}, torch::kDouble);
  for (const auto& chunk : cut.chunk(2)) {
    const auto loss = role.whole(*net.head, [&] { return torch::tanh(net.head->forward(chunk)).square().mean() / 2; });
    loss.backward();
    sum += loss.detach();
  }
  features.backward(cut.grad());
  return sum;
}

Values train_in_chunks(PartsNet& net, const Role& role, int micro_batches, const std::function<void(bool)>& around) {
  auto optimizer = sgd(net.parameters());
  Values losses;
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    for (int micro = 0; micro < micro_batches; ++micro) {
      if (role.is_sharded()) group_of(net).set_requires_gradient_sync(micro + 1 == micro_batches);
      around(/*begins=*/true);
      losses.push_back(backward_in_chunks(net, role, role.batch(micro_batches * step + micro)));
      around(/*begins=*/false);
    }
    EXPECT_FALSE(net.spare->weight.grad().defined());
    optimizer.step();
  }
  return losses;
}

TEST(ZooParts, OfAListCalledInScopesOfTheirOwnEqualTheUnshardedRun) {
  expect_equals_unsharded(
      parts_program([](PartsNet& net, const Role& role) { return train_in_chunks(net, role, 1, [](bool) {}); }));
}

TEST(ZooParts, OfAListCalledInScopesOfTheirOwnOverMicroBatchesEqualTheUnshardedRun) {
  expect_equals_unsharded(
      parts_program([](PartsNet& net, const Role& role) { return train_in_chunks(net, role, 3, [](bool) {}); }));
}

TEST(ZooParts, OfAListThatStaysWholeForTheirScopesEqualTheUnshardedRun) {
  expect_equals_unsharded(parts_program([](PartsNet& net, const Role& role) {
    return train_in_chunks(net, role, 2, [&](bool begins) {
      if (!role.is_sharded()) return;
      const auto tail = group_of(*net.head);
      tail.set_reshard_after_forward(!begins);
      tail.set_reshard_after_backward(!begins);
      if (!begins) tail.reshard();
    });
  }));
}

TEST(ZooParts, OfAListThatAreNeverCalledKeepNoGradient) {
  expect_equals_unsharded(parts_program([](PartsNet& net, const Role& role) {
    auto losses = train(net, role, [](PartsNet& m, const Batch& batch) {
      return m.features(batch).square().mean() + m.features({batch.step + 7, batch.first, batch.count}).tanh().mean();
    });
    EXPECT_TRUE(net.norm->weight.grad().defined());
    EXPECT_FALSE(net.head->weight.grad().defined());
    EXPECT_FALSE(net.spare->weight.grad().defined());
    return losses;
  }));
}

TEST(ZooParts, WhoseOutputIsUsedInSomeStepsOnlyEqualTheUnshardedRun) {
  expect_equals_unsharded(parts_program([](PartsNet& net, const Role& role) {
    auto losses = train(net, role, [](PartsNet& m, const Batch& batch) {
      auto features = m.features(batch);
      const auto more = m.spare->forward(features);
      if (batch.step < 2) features = features + more;
      return distance_from_targets(m.head->forward(features), batch);
    });
    EXPECT_FALSE(net.spare->weight.grad().defined());
    return losses;
  }));
}

// A child before the model that it is in, and after it.
TEST(ZooParts, CalledAloneBeforeAndAfterTheModelEqualTheUnshardedRun) {
  expect_equals_unsharded(parts_program([](PartsNet& net, const Role& role) {
    auto optimizer = sgd(net.parameters());
    Values losses;
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      for (const bool alone : {true, false, true}) {
        const auto batch = role.batch(3 * step + (alone ? 0 : 1));
        auto loss =
            alone
                ? role.whole(*net.in, [&] { return net.in->forward(samples(batch, {4})).square().mean(); })
                : role.whole(net, [&] { return distance_from_targets(net.head->forward(net.features(batch)), batch); });
        loss.backward();
        EXPECT_EQ(net.in->weight.size(0), local_rows(net.in->weight).count) << "rows after backward";
        losses.push_back(loss.detach());
      }
      optimizer.step();
    }
    return losses;
  }));
}

TEST(ZooParts, OfWhichSomeWaitForTheirReductionEqualTheUnshardedRun) {
  for (const bool root_waits : {true, false})
    expect_equals_unsharded(parts_program([=](PartsNet& net, const Role& role) {
      auto optimizer = sgd(net.parameters());
      for (int step = 0; step < 4; ++step) {
        optimizer.zero_grad();
        for (int micro = 0; micro < 3; ++micro) {
          const auto batch = role.batch(3 * step + micro);
          const auto loss = [&] { return distance_from_targets(net.head->forward(net.features(batch)), batch); };
          if (role.is_sharded()) {
            const auto waiting = root_waits ? group_of(net) : group_of(*net.in);
            waiting.set_requires_gradient_sync(micro == 2, /*recurse=*/false);
          }
          role.whole(net, loss).backward();
          EXPECT_TRUE(net.head->weight.grad().defined());
          EXPECT_EQ(net.scale.grad().defined(), !role.is_sharded() || !root_waits || micro == 2);
          EXPECT_EQ(net.in->weight.grad().defined(), !role.is_sharded() || root_waits || micro == 2);
        }
        optimizer.step();
      }
      return Values{role.gradient(net.in->weight), role.gradient(net.scale)};
    }));
}

// Frozen and trained parameters of one group, which one forward uses three times.
struct HalfFrozen : nn::Module {
  nn::Linear in{4, 5}, again{5, 5};
  HalfFrozen() {
    register_module("in", in);
    register_module("again", again);
    again->weight.set_requires_grad(false);
    in->bias.set_requires_grad(false);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = torch::tanh(in->forward(x));
    for (int i = 0; i < 3; ++i) h = torch::tanh(again->forward(h));
    return h;
  }
};

TEST(ZooParts, ThatAreHalfFrozenAndUsedThriceEqualTheUnshardedRun) {
  auto program =
      regression<HalfFrozen>([] { return std::make_shared<HalfFrozen>(); },
                             [](HalfFrozen& m, const Batch& batch) { return m.forward(samples(batch, {4})); });
  expect_equals_unsharded(program);
  program.shard = shard_as_one_group;
  expect_equals_unsharded(program, worlds_up_to(3));
}

}  // namespace
}  // namespace fsdp::test
