// Tests of users' hooks on reduced gradients, with optimizers that step in the middle of a backward.

#include <gmock/gmock.h>

#include "support/axes.h"
#include "support/small_net.h"

namespace fsdp::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;
using torch::Tensor;

using Maker = std::function<std::shared_ptr<torch::optim::Optimizer>(const std::vector<Tensor>&)>;

template <class Optimizer, class Options>
Maker maker(Options options) {
  return [options](const std::vector<Tensor>& parameters) { return std::make_shared<Optimizer>(parameters, options); };
}

// Holds one optimizer per param group. A hook steps it in backward.
class SteppersInBackward {
 public:
  SteppersInBackward(SmallNetImpl& net, const Maker& make) {
    const auto add = [&](const Group& group, const std::vector<Tensor>& parameters) {
      group.set_post_accumulate_grad_hook([optimizer = make(parameters)](const std::vector<Tensor>&) {
        optimizer->step();
        optimizer->zero_grad();
      });
      groups_.push_back(group);
    };
    for (const auto& block : *net.blocks) add(group_of(*block), block->parameters());
    add(group_of(net), {net.first->weight, net.first->bias, net.head->weight});
  }
  ~SteppersInBackward() {
    for (const auto& group : groups_) group.set_post_accumulate_grad_hook({});
  }
  SteppersInBackward(const SteppersInBackward&) = delete;
  SteppersInBackward& operator=(const SteppersInBackward&) = delete;

 private:
  std::vector<Group> groups_;
};

Program<SmallNetImpl> program_of(const std::function<Values(SmallNetImpl&, const Role&)>& run) {
  Program<SmallNetImpl> program;
  program.build = [] { return std::make_shared<SmallNetImpl>(); };
  program.shard = [](SmallNetImpl& net, const FullyShardOptions& sharding) { shard_blocks(net, sharding); };
  program.run = run;
  return program;
}

Program<SmallNetImpl> stepping_in_backward(const Maker& unsharded, const Maker& in_backward, int micro_batches = 1) {
  return program_of([=](SmallNetImpl& net, const Role& role) {
    std::optional<SteppersInBackward> steppers;
    const auto whole = unsharded(net.parameters());
    if (role.is_sharded()) steppers.emplace(net, in_backward);
    Values losses;
    for (int step = 0; step < 3; ++step) {
      for (int i = 0; i < micro_batches; ++i) {
        if (role.is_sharded()) group_of(net).set_requires_gradient_sync(i + 1 == micro_batches);
        auto loss = role.whole(net, [&] { return small_net_loss(net, role.batch(micro_batches * step + i)); });
        loss.backward();
        losses.push_back(loss.detach());
      }
      if (role.is_sharded()) {
        for (const auto& parameter : net.parameters()) EXPECT_FALSE(parameter.grad().defined());
      } else {
        whole->step();
        whole->zero_grad();
      }
    }
    return losses;
  });
}

TEST(OptimizerInBackward, EqualsAStepAfterIt) {
  const auto sgd = maker<torch::optim::SGD>(torch::optim::SGDOptions(0.05).momentum(0.9));
  expect_equals_unsharded(stepping_in_backward(sgd, sgd));
  // The same must hold for a fused optimizer, and if only the last of several micro-batches steps.
  const torch::optim::AdamWOptions adamw(1e-2);
  expect_equals_unsharded(stepping_in_backward(maker<torch::optim::AdamW>(adamw), maker<optim::AdamW>(adamw)), {3});
  expect_equals_unsharded(stepping_in_backward(sgd, sgd, 3), {2});
}

// One rank's net of blocks, with a counter of the calls of a hook.
struct HookRank {
  explicit HookRank(int64_t dim = 11, int64_t depth = 3)
      : net(alike_small_net(torch::kFloat, dim, depth)), group(shard_blocks(*net)) {}

  Tensor loss() const { return own_loss(*net, group, 0); }
  int calls_in_a_backward() {
    calls = 0;
    loss().backward();
    return calls;
  }

  const std::shared_ptr<SmallNetImpl> net;
  const Group group;
  int calls = 0;
  std::function<void(const std::vector<Tensor>&)> counts = [this](const std::vector<Tensor>&) { ++calls; };
};

void on_two_hook_ranks(const std::function<void(HookRank&)>& body) {
  run_thread_ranks(2, [&](int) {
    HookRank on;
    body(on);
  });
}

TEST(OptimizerInBackward, HoldsTheGradientsOfAFewGroupsOnly) {
  run_thread_ranks(2, [](int) {
    const HookRank on(24, 10);
    const auto peak = [&] {
      const auto loss = on.loss();
      on.group.reset_peak_stats();
      loss.backward();
      return on.group.stats().gradient.peak;
    };
    const auto block = group_of(*(*on.net->blocks)[0]).stats().parameter_numel * static_cast<int64_t>(sizeof(float));
    const int64_t ordinary = peak();
    for (auto& parameter : on.net->parameters()) parameter.mutable_grad().reset();
    const SteppersInBackward steppers(*on.net, maker<torch::optim::SGD>(torch::optim::SGDOptions(0.1)));
    // At the end, the ordinary backward holds the row gradients of ten blocks, half a block each. With the hook it
    // holds those of two blocks.
    EXPECT_LE(peak(), ordinary - 3 * block);
    EXPECT_EQ(on.group.stats().gradient.current, 0);
  });
}

TEST(AHookOfCompleteGradients, SeesRowsAndTheirGradientsAndOtherGroupsWhole) {
  on_two_hook_ranks([](HookRank& on) {
    const auto last = group_of(*(*on.net->blocks)[2]);
    last.set_post_accumulate_grad_hook([&](const std::vector<Tensor>& parameters) {
      ++on.calls;
      EXPECT_EQ(parameters.size(), 6);
      for (const auto& parameter : parameters) {
        EXPECT_EQ(parameter.grad().sizes(), parameter.sizes());
        EXPECT_EQ(parameter.size(0), local_rows(parameter).count);
      }
      EXPECT_EQ(on.net->first->weight.sizes(), (std::vector<int64_t>{11, 5}));
      torch::NoGradGuard no_grad;
      EXPECT_THROW(on.net->first->weight.mul_(2), UsageError);
    });
    EXPECT_EQ(on.calls_in_a_backward(), 1);
    EXPECT_TRUE((*on.net->blocks)[2]->as<SmallBlock>()->in->weight.grad().defined());
    last.set_post_accumulate_grad_hook({});
    EXPECT_EQ(on.calls_in_a_backward(), 0);
  });
}

TEST(AHookOfCompleteGradients, IsCalledForWhatIsReducedOutsideScopes) {
  on_two_hook_ranks([](HookRank& on) {
    on.group.set_all_reduce_hook([](const Tensor&) { ADD_FAILURE() << "this hook was taken away"; });
    on.group.set_all_reduce_hook({});
    on.group.set_post_accumulate_grad_hook(on.counts);
    {
      const auto no_sync = on.group.no_sync();
      EXPECT_EQ(on.calls_in_a_backward(), 0);
    }
    EXPECT_EQ(on.calls_in_a_backward(), 1);
    const auto backward_in_a_scope = [&] {
      ForwardScope scope(on.group);
      small_net_loss(*on.net, {0, 0, 2}).backward();
    };
    EXPECT_THAT(backward_in_a_scope,
                ThrowsMessage<UsageError>(AllOf(HasSubstr(c10::str("[fsdp rank ", rank(), "/2] backward")),
                                                HasSubstr("set_post_accumulate_grad_hook"),
                                                HasSubstr("Close the scope before backward"))));
    on.group.reset_iter_state();
    EXPECT_EQ(on.calls_in_a_backward(), 1);
  });
}

// The scope computes gradients of the input for a penalty. That must not call the hook.
TEST(AHookOfCompleteGradients, LeavesAutogradGradInAScopeAlone) {
  on_two_hook_ranks([](HookRank& on) {
    on.group.set_post_accumulate_grad_hook(on.counts);
    const auto loss = in_scope(on.group, [&] {
      const auto x = samples({0, rank() * 2, 2}, {5}, torch::kFloat).requires_grad_();
      const auto y = on.net->forward(x).square().mean();
      return y + torch::autograd::grad({y}, {x}, {}, true, true)[0].square().sum();
    });
    EXPECT_EQ(on.calls, 0);
    loss.backward();
    EXPECT_EQ(on.calls, 1);
  });
}

// The graph's own nodes read a group before it is reduced, but a hook on an activation may read it at any time.
TEST(AHookOfCompleteGradients, ThatMayHaveSteppedWhatIsReadLaterMakesThatAnError) {
  run_thread_ranks(2, [](int) {
    auto net = build_alike([] { return SmallNet(); });
    fully_shard(*net->head);
    const auto group = shard_blocks(*net);
    const auto head = group_of(*net->head);
    const auto loss = [&] {
      auto h = torch::tanh(net->first->forward(samples({0, rank() * 2, 2}, {5}, torch::kFloat)));
      h.register_hook([&](const Tensor& gradient) { return gradient * net->head->weight.square().sum(); });
      for (auto& block : *net->blocks) h = block->as<SmallBlock>()->forward(h);
      return net->head->forward(h).square().mean();
    };
    const auto backward = [&] { in_scope(group, loss).backward(); };
    backward();
    head.set_post_accumulate_grad_hook([](const std::vector<Tensor>&) {});
    EXPECT_THAT(backward, ThrowsMessage<UsageError>(HasSubstr("after the hook of set_post_accumulate_grad_hook got")));
    group.reset_iter_state();
    head.set_post_accumulate_grad_hook({});
    backward();
  });
}

Tensor clamped(const Tensor& gradient) { return gradient.clamp(-0.01, 0.01); }

TEST(AnAllReduceHook, GetsReducedGradientsAndMayChangeThem) {
  const auto train_clamped = [](SmallNetImpl& net, const Role& role) {
    const auto clamp = [](const Tensor& rows) {
      EXPECT_EQ(rows.dim(), 1);
      rows.copy_(clamped(rows));
    };
    if (role.is_sharded()) {
      for (const auto& block : *net.blocks) group_of(*block).set_all_reduce_hook(clamp);
      group_of(net).set_all_reduce_hook(clamp);
    }
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
  expect_equals_unsharded(program_of(train_clamped), worlds_up_to(3));
}

// The hook averages over the replicas itself.
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

}  // namespace
}  // namespace fsdp::test
