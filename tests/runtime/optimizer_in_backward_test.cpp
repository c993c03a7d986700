// The user's hooks of reduced gradients, with optimizers that step in the middle of a backward.

#include <gmock/gmock.h>

#include <numeric>

#include "support/axes.h"
#include "support/small_net.h"

namespace fsdp::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using torch::Tensor;

// One optimizer for each group, which steps in backward.
class SteppersInBackward {
 public:
  template <class Make>
  SteppersInBackward(SmallNetImpl& net, const Make& make) {
    for (const auto& block : *net.blocks) add(group_of(*block), block->parameters(), make);
    auto others = net.first->parameters();
    others.push_back(net.head->weight);
    add(group_of(net), others, make);
  }
  ~SteppersInBackward() {
    for (const auto& group : groups_) group.set_post_accumulate_grad_hook({});
  }
  SteppersInBackward(const SteppersInBackward&) = delete;
  SteppersInBackward& operator=(const SteppersInBackward&) = delete;

 private:
  template <class Make>
  void add(const Group& group, const std::vector<Tensor>& parameters, const Make& make) {
    auto* optimizer = optimizers_.emplace_back(make(parameters)).get();
    group.set_post_accumulate_grad_hook([optimizer](const std::vector<Tensor>&) {
      optimizer->step();
      optimizer->zero_grad();
    });
    groups_.push_back(group);
  }

  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers_;
  std::vector<Group> groups_;
};

template <class Optimizer, class Options>
auto maker(Options options) {
  return [options](const std::vector<Tensor>& parameters) { return std::make_unique<Optimizer>(parameters, options); };
}

template <class Unsharded, class InBackward, class Options>
Program<SmallNetImpl> stepping_in_backward(const Options& options, int micro_batches = 1) {
  Program<SmallNetImpl> program;
  program.build = [] { return std::make_shared<SmallNetImpl>(); };
  program.shard = [](SmallNetImpl& net, const FullyShardOptions& sharding) { shard_blocks(net, sharding); };
  program.run = [=](SmallNetImpl& net, const Role& role) {
    std::optional<SteppersInBackward> steppers;
    Unsharded whole(net.parameters(), options);
    if (role.is_sharded()) steppers.emplace(net, maker<InBackward>(options));
    Values losses;
    for (int step = 0; step < 4; ++step) {
      for (int i = 0; i < micro_batches; ++i) {
        if (role.is_sharded()) group_of(net).set_requires_gradient_sync(i + 1 == micro_batches);
        auto loss = role.whole(net, [&] { return small_net_loss(net, role.batch(micro_batches * step + i)); });
        loss.backward();
        losses.push_back(loss.detach());
      }
      if (role.is_sharded()) {
        for (const auto& parameter : net.parameters()) EXPECT_FALSE(parameter.grad().defined());
      } else {
        whole.step();
        whole.zero_grad();
      }
    }
    return losses;
  };
  return program;
}

TEST(OptimizerInBackward, EqualsAStepAfterIt) {
  const auto options = torch::optim::SGDOptions(0.05).momentum(0.9);
  expect_equals_unsharded(stepping_in_backward<torch::optim::SGD, torch::optim::SGD>(options));
}

TEST(OptimizerInBackward, MayBeAFusedOne) {
  const torch::optim::AdamWOptions options(1e-2);
  expect_equals_unsharded(stepping_in_backward<torch::optim::AdamW, optim::AdamW>(options), worlds_up_to(3));
}

TEST(OptimizerInBackward, StepsWithTheLastMicroBatch) {
  const auto options = torch::optim::SGDOptions(0.05);
  expect_equals_unsharded(stepping_in_backward<torch::optim::SGD, torch::optim::SGD>(options, 3), {2});
}

Tensor loss_of(SmallNetImpl& net, const Group& group) {
  ForwardScope scope(group);
  return small_net_loss(net, {0, rank() * 2, 2});
}

TEST(OptimizerInBackward, HoldsTheGradientsOfAFewGroupsOnly) {
  run_thread_ranks(2, [](int) {
    auto net = build_alike([] { return SmallNet(24, 10); });
    const auto group = shard_blocks(*net);
    const auto peak = [&] {
      const auto loss = loss_of(*net, group);
      group.reset_peak_stats();
      loss.backward();
      return group.stats().gradient.peak;
    };
    int64_t block = 0;
    for (const auto& parameter : (*net->blocks)[0]->parameters())
      block += c10::multiply_integers(global_sizes(parameter)) * static_cast<int64_t>(sizeof(float));
    const int64_t ordinary = peak();
    for (auto& parameter : net->parameters()) parameter.mutable_grad().reset();
    const SteppersInBackward steppers(*net, maker<torch::optim::SGD>(torch::optim::SGDOptions(0.1)));
    const int64_t in_backward = peak();
    // Of ten blocks the rows, half a block each, were held at the end; now those of two.
    EXPECT_LE(in_backward, ordinary - 3 * block);
    EXPECT_EQ(group.stats().gradient.current, 0);
  });
}

TEST(AHookOfCompleteGradients, SeesRowsAndTheirGradientsAndOtherGroupsWhole) {
  run_thread_ranks(2, [](int) {
    auto net = build_alike([] { return SmallNet(); });
    const auto group = shard_blocks(*net);
    const auto last = group_of(*(*net->blocks)[2]);
    int calls = 0;
    last.set_post_accumulate_grad_hook([&](const std::vector<Tensor>& parameters) {
      ++calls;
      EXPECT_EQ(parameters.size(), 6);
      for (const auto& parameter : parameters) {
        EXPECT_EQ(parameter.grad().sizes(), parameter.sizes());
        EXPECT_EQ(parameter.size(0), local_rows(parameter).count);
      }
      EXPECT_EQ(net->first->weight.sizes(), (std::vector<int64_t>{11, 5}));
      torch::NoGradGuard no_grad;
      EXPECT_THROW(net->first->weight.mul_(2), UsageError);
    });
    loss_of(*net, group).backward();
    EXPECT_EQ(calls, 1);
    EXPECT_TRUE((*net->blocks)[2]->as<SmallBlock>()->in->weight.grad().defined());
    last.set_post_accumulate_grad_hook({});
    loss_of(*net, group).backward();
    EXPECT_EQ(calls, 1);
  });
}

TEST(AHookOfCompleteGradients, IsNotCalledForWhatIsNotReduced) {
  run_thread_ranks(2, [](int) {
    auto net = build_alike([] { return SmallNet(); });
    const auto group = shard_blocks(*net);
    int calls = 0;
    group.set_post_accumulate_grad_hook([&](const std::vector<Tensor>&) { ++calls; });
    {
      const auto no_sync = group.no_sync();
      loss_of(*net, group).backward();
    }
    EXPECT_EQ(calls, 0);
    loss_of(*net, group).backward();
    EXPECT_EQ(calls, 1);
  });
}

TEST(AHookOfCompleteGradients, IsRefusedWhereItsGroupIsInAScope) {
  run_thread_ranks(2, [](int rank) {
    auto net = build_alike([] { return SmallNet(); });
    const auto group = shard_blocks(*net);
    group.set_post_accumulate_grad_hook([](const std::vector<Tensor>&) {});
    try {
      ForwardScope scope(group);
      small_net_loss(*net, {0, 0, 2}).backward();
      ADD_FAILURE() << "no error";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what_without_backtrace(),
                  AllOf(HasSubstr(c10::str("[fsdp rank ", rank, "/2] backward")),
                        HasSubstr("set_post_accumulate_grad_hook"), HasSubstr("Close the scope before backward")));
    }
    group.reset_iter_state();
    loss_of(*net, group).backward();
  });
}

// A penalty on the gradients of the input is taken in the scope.
TEST(AHookOfCompleteGradients, LeavesAutogradGradInAScopeAlone) {
  run_thread_ranks(2, [](int rank) {
    auto net = build_alike([] { return SmallNet(); });
    const auto group = shard_blocks(*net);
    int calls = 0;
    group.set_post_accumulate_grad_hook([&](const std::vector<Tensor>&) { ++calls; });
    Tensor loss;
    {
      ForwardScope scope(group);
      const auto x = samples({0, rank * 2, 2}, {5}, torch::kFloat).requires_grad_();
      const auto y = net->forward(x).square().mean();
      loss = y + torch::autograd::grad({y}, {x}, {}, true, true)[0].square().sum();
    }
    EXPECT_EQ(calls, 0);
    loss.backward();
    EXPECT_EQ(calls, 1);
  });
}

// Other nodes of a group run before it is reduced; a hook of an activation may read it when it likes.
TEST(AHookOfCompleteGradients, ThatMayHaveSteppedWhatIsReadLaterMakesThatAnError) {
  run_thread_ranks(2, [](int) {
    auto net = build_alike([] { return SmallNet(); });
    fully_shard(*net->head);
    const auto group = shard_blocks(*net);
    const auto head = group_of(*net->head);
    const auto backward = [&] {
      Tensor loss;
      {
        ForwardScope scope(group);
        auto h = torch::tanh(net->first->forward(samples({0, rank() * 2, 2}, {5}, torch::kFloat)));
        h.register_hook([&](const Tensor& gradient) { return gradient * net->head->weight.square().sum(); });
        for (auto& block : *net->blocks) h = block->as<SmallBlock>()->forward(h);
        loss = net->head->forward(h).square().mean();
      }
      loss.backward();
    };
    backward();
    head.set_post_accumulate_grad_hook([](const std::vector<Tensor>&) {});
    try {
      backward();
      ADD_FAILURE() << "no error";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr("are read after their gradients were handed to the hook"));
    }
    group.reset_iter_state();
    head.set_post_accumulate_grad_hook({});
    backward();
  });
}

Tensor clamped(const Tensor& gradient) { return gradient.clamp(-0.01, 0.01); }

TEST(AnAllReduceHook, GetsReducedGradientsAndMayChangeThem) {
  Program<SmallNetImpl> program;
  program.build = [] { return std::make_shared<SmallNetImpl>(); };
  program.shard = [](SmallNetImpl& net, const FullyShardOptions& options) {
    shard_blocks(net, options);
    const auto clamp = [](const Tensor& rows) { rows.copy_(clamped(rows)); };
    for (const auto& block : *net.blocks) group_of(*block).set_all_reduce_hook(clamp);
    group_of(net).set_all_reduce_hook(clamp);
  };
  program.run = [](SmallNetImpl& net, const Role& role) {
    auto optimizer = sgd(net.parameters());
    Values losses;
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      auto loss = role.whole(net, [&] { return small_net_loss(net, role.batch(step)); });
      loss.backward();
      if (!role.is_sharded())
        for (auto& parameter : net.parameters()) parameter.mutable_grad() = clamped(parameter.grad());
      optimizer.step();
      losses.push_back(loss.detach());
    }
    return losses;
  };
  expect_equals_unsharded(program, worlds_up_to(3));
}

// What replicas do if they are told so by hand.
TEST(AnAllReduceHook, MayCommunicate) {
  auto training = small_net_training();
  training.shard = [](SmallNetImpl& net) {
    const auto placement = placement_over({2, 2});
    const std::shared_ptr<ProcessGroup> replicas = placement.replicate().front();
    const auto average = [replicas](const Tensor& rows) {
      replicas->communicator().all_reduce(rows, ReduceOp::kSum, {"by hand", {}})->wait();
      rows.mul_(0.5);
    };
    const runtime::Placement shards(placement.process_group().split({{0, 1}, {2, 3}}, "by hand"));
    for (auto& block : *net.blocks) shard_over(shards, module_tree(*block), {}).set_all_reduce_hook(average);
    const auto group = shard_over(shards, module_tree(net), {});
    group.set_all_reduce_hook(average);
    return group;
  };
  expect_training_equals_unsharded(training, 4);
}

TEST(AnAllReduceHook, IsTakenAwayByNone) {
  run_thread_ranks(2, [](int) {
    auto net = build_alike([] { return SmallNet(); });
    const auto group = shard_blocks(*net);
    int calls = 0;
    group.set_all_reduce_hook([&](const Tensor& rows) {
      ++calls;
      EXPECT_EQ(rows.dim(), 1);
    });
    loss_of(*net, group).backward();
    EXPECT_EQ(calls, 1);
    group.set_all_reduce_hook({});
    loss_of(*net, group).backward();
    EXPECT_EQ(calls, 1);
  });
}

}  // namespace
}  // namespace fsdp::test
