// Tests of forwards and backwards that differ from step to step, and of what may happen between them.

#include "zoo/zoo.h"

namespace fsdp::test {
namespace {

using Order = std::vector<size_t>;

struct OrderNet : nn::Module {
  nn::Linear in = register_module("in", nn::Linear(4, 6));
  nn::ModuleList blocks =
      register_module("blocks", nn::ModuleList(nn::Linear(6, 6), nn::Linear(6, 6), nn::Linear(6, 6), nn::Linear(6, 6)));
  nn::Linear out = register_module("out", nn::Linear(6, 3));

  nn::LinearImpl& block(size_t i) { return *blocks[i]->as<nn::Linear>(); }
  Tensor forward(const Tensor& x, const Order& order = {0, 1, 2, 3}) {
    auto h = in->forward(x);
    for (size_t i : order) h = h + torch::tanh(block(i).forward(h));
    return out->forward(h);
  }
  Tensor loss(const Batch& batch, const Order& order) {
    return distance_from_targets(forward(samples(batch, {4}), order), batch);
  }
};

void shard_blocks_then_root(nn::Module& net, const FullyShardOptions& options) {
  for (auto& block : *dynamic_cast<OrderNet&>(net).blocks) fully_shard(*block, options);
  fully_shard(net, options);
}

void expect_same_in_order(Run<OrderNet> run) { expect_same_sharded<OrderNet>(std::move(run), shard_blocks_then_root); }

TEST(ZooOrder, BlocksInAnotherOrderEachStepLeftOutOrRepeatedEqualTheUnshardedRun) {
  const std::vector<Order> orders{{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}, {2}, {0, 0, 3, 0}, {}, {1, 2, 1, 2, 3}};
  const auto loss = [&](OrderNet& net, const Batch& batch) {
    return net.loss(batch, orders[static_cast<size_t>(batch.step)]);
  };
  expect_same_in_order(fitting<OrderNet>(loss, static_cast<int>(orders.size())));
}

TEST(ZooOrder, AForwardThatIsDroppedAndAnEvaluationBeforeBackwardEqualTheUnshardedRun) {
  expect_same_in_order(stepping<OrderNet>([](OrderNet& net, const Role& role, int step) {
    scoped_loss(net, role, step + 30);  // recorded, and then dropped
    auto loss = scoped_loss(net, role, step);
    torch::NoGradGuard no_grad;
    auto evaluated = role.whole(net, [&] { return net.loss(role.batch(step + 20), {1, 2}); });
    torch::AutoGradMode with_grad(true);
    return backward_of(loss) + 3 * evaluated;
  }));
}

TEST(ZooOrder, PartOfForwardWithoutGradEqualsTheUnshardedRun) {
  expect_same_in_order(fitting<OrderNet>([](OrderNet& m, const Batch& batch) {
    Tensor target;
    {
      torch::NoGradGuard no_grad;
      target = m.forward(samples(batch, {4}) * 0.5, {3, 1});
    }
    return torch::mse_loss(m.forward(samples(batch, {4}), {0, 1, 2}), target);
  }));
}

// Runs `act` on every rank, with the rank's part of the batch and of the gradients, and compares the gradients.
template <class Net>
void expect_same_gradients_of_shares(
    const std::function<void(Net&, const Role&, bool is_first, const Batch&, double part)>& act,
    const Shard& shard = shard_children_then_root) {
  expect_same_sharded<Net>(
      [&](Net& net, const Role& role) {
        for_each_rank_of(role,
                         [&](const Role& rank, double part) { act(net, role, rank.rank == 0, rank.batch(0), part); });
        Values gradients;
        for (const auto& parameter : net.parameters())
          if (parameter.requires_grad()) gradients.push_back(role.gradient(parameter));
        return gradients;
      },
      shard);
}

struct SometimesBiased : nn::Module {
  nn::Linear first = register_module("first", nn::Linear(4, 3)), last = register_module("last", nn::Linear(3, 3));
  Tensor loss(const Tensor& x, bool is_biased, const Batch& batch) {
    auto h = torch::tanh(first->forward(x));
    return distance_from_targets(is_biased ? last->forward(h) : torch::linear(h, last->weight), batch);
  }
};

// After its forward, `first` was in a scope that read nothing, and `last` was in one that might be recomputed. Only the
// ranks that have given the bias of `last` a gradient therefore know that `last` is complete before `first` is read.
TEST(ZooOrder, ScopesAfterTheForwardLeaveTheOrderOfReductionsTheSameOnEveryRank) {
  expect_same_gradients_of_shares<SometimesBiased>(
      [](SometimesBiased& net, const Role& role, bool is_biased, const Batch& batch, double part) {
        auto x = samples(batch, {4}).requires_grad_();  // makes the backward of `first` read its weight
        auto loss = role.whole(net, [&] { return net.loss(x, is_biased, batch); });
        role.whole(*net.first, [] {});
        {
          torch::NoGradGuard no_grad;
          role.whole(*net.last, [&] { net.last->forward(samples(batch, {3})); });
        }
        (loss * part).backward();
      });
}

// A bias that was read without recording may still get a gradient. Only the other ranks therefore know in backward,
// before the scope goes on, that `last` is complete.
TEST(ZooOrder, AForwardAfterABackwardInItsScopeGathersTheSameOnEveryRank) {
  expect_same_gradients_of_shares<SometimesBiased>(
      [](SometimesBiased& net, const Role& role, bool is_first, const Batch& batch, double part) {
        const auto loss = [&](bool is_biased) { return net.loss(samples(batch, {4}), is_biased, batch) * part; };
        role.whole(net, [&] {
          {
            torch::NoGradGuard no_grad;
            loss(/*is_biased=*/is_first);
          }
          loss(/*is_biased=*/false).backward();
          loss(/*is_biased=*/true).backward();
        });
      });
}

struct ReadTwice : nn::Module {
  nn::Linear first = register_module("first", nn::Linear(4, 3)), twice = register_module("twice", nn::Linear(3, 3)),
             between = register_module("between", nn::Linear(3, 3));
  ReadTwice() { twice->weight.set_requires_grad(false); }
  Tensor forward(const Tensor& x, bool is_biased_first) {
    const Tensor none;
    auto h = torch::linear(torch::tanh(first->forward(x)), twice->weight, is_biased_first ? twice->bias : none);
    h = torch::tanh(between->forward(torch::tanh(h)));
    return torch::linear(h, twice->weight, is_biased_first ? none : twice->bias);
  }
};

// Leaves the layer that is read twice in the root's group.
void shard_what_is_read_once(nn::Module& net, const FullyShardOptions& options) {
  fully_shard(*dynamic_cast<ReadTwice&>(net).first, options);
  fully_shard(*dynamic_cast<ReadTwice&>(net).between, options);
  fully_shard(net, options);
}

// In the middle of backward, the ranks that used the bias last have its gradient, and the others do not have it yet.
// Then all ranks read the frozen weight once more.
TEST(ZooOrder, AGroupReadTwiceInABackwardIsGatheredTheSameOnEveryRankWhicheverHasItsGradients) {
  for (auto* shard : {shard_children_then_root, shard_what_is_read_once})
    expect_same_gradients_of_shares<ReadTwice>(
        [](ReadTwice& net, const Role& role, bool is_first, const Batch& batch, double part) {
          const auto loss = [&] { return distance_from_targets(net.forward(samples(batch, {4}), is_first), batch); };
          for (int pass = 0; pass < 2; ++pass) (role.whole(net, loss) * part).backward();
        },
        shard);
}

// The program writes a tensor that backward needs after forward. This is an error in the unsharded model, too.
TEST(ZooOrder, WriteBetweenForwardAndBackwardIsAutogradsError) {
  run_thread_ranks(2, [&](int) {
    auto model = fully_shard(build_alike([] { return std::make_shared<OrderNet>(); }));
    auto loss = model(torch::ones({2, 4})).sum();
    {
      torch::NoGradGuard no_grad;
      for (auto& parameter : model.parameters()) parameter.mul_(0.5);
    }
    EXPECT_THROW(loss.backward(), c10::Error);
    model.reset_iter_state();
  });
}

// One operator takes parameters of three groups. Then a penalty takes the parameters of all groups.
TEST(ZooOrder, OperatorsOnParametersOfSeveralGroupsEqualTheUnshardedRun) {
  expect_same_in_order(fitting<OrderNet>([](OrderNet& m, const Batch& batch) {
    auto three = torch::cat({m.block(0).weight, m.block(2).weight, m.block(3).weight});
    auto h = torch::linear(m.in->forward(samples(batch, {4})), three);
    h = torch::einsum("bi,ij,jk->bk", {h.slice(1, 0, 6), m.block(1).weight, m.out->weight.t()});
    auto loss = distance_from_targets(h, batch);
    for (const auto& parameter : m.parameters()) loss = loss + 0.01 * (parameter * parameter).sum();
    return loss;
  }));
}

TEST(ZooOrder, GradientsChangedByHandBeforeTheStepEqualTheUnshardedRun) {
  expect_same_in_order(stepping<OrderNet>([](OrderNet& net, const Role& role, int step) {
    auto loss = learn(net, role, step);
    torch::NoGradGuard no_grad;
    for (auto& parameter : net.parameters()) {
      parameter.grad().mul_(0.5).clamp_(-0.1, 0.1);
      parameter.mutable_grad() = parameter.grad() + parameter * 0.01;
    }
    return loss;
  }));
}

TEST(ZooOrder, WholeParametersKeptForBackwardOrAfterItEqualTheUnshardedRun) {
  const auto expect_same_configured = [](void (*configure)(OrderNet&)) {
    expect_same_in_order([&](OrderNet& net, const Role& role) {
      if (role.is_sharded()) configure(net);
      return train(net, role, loss_of<OrderNet>);
    });
  };
  expect_same_configured([](OrderNet& net) { group_of(net).set_reshard_after_backward(false); });
  expect_same_configured([](OrderNet& net) {
    for (auto& block : *net.blocks) group_of(*block).set_unshard_in_backward(false);
  });
}

TEST(ZooOrder, PrefetchListsEvenUselessOnesEqualTheUnshardedRun) {
  expect_same_in_order([](OrderNet& net, const Role& role) {
    if (role.is_sharded()) {
      auto group = [&](size_t i) { return group_of(net.block(i)); };
      group(0).set_modules_to_forward_prefetch({group(1), group(3)});
      group(1).set_modules_to_forward_prefetch({group(0)});
      group(3).set_modules_to_backward_prefetch({group(1), group(0)});
      group(0).set_modules_to_backward_prefetch({group(3)});
    }
    return train(net, role, loss_of<OrderNet>);
  });
}

TEST(ZooOrder, DivideFactorOfOneGivesTheSumOverTheRanks) {
  expect_same_in_order([](OrderNet& net, const Role& role) {
    if (role.is_sharded()) group_of(net).set_gradient_divide_factor(1.0);  // for the root's group only
    learn(net, role);
    auto factor = role.is_sharded() ? 1.0 : static_cast<double>(role.world);
    return Values{role.gradient(net.in->weight) * factor, role.gradient(net.block(1).weight)};
  });
}

// The first block is whole on every rank. Only rank 0 uses it; the other ranks declare that they take part in its
// reduction.
TEST(ZooOrder, GroupReachedBySomeRanksIsReducedByThoseThatAskForIt) {
  expect_same_in_order([](OrderNet& net, const Role& role) {
    Values values;
    descend(net.parameters(), [&](int step) {
      std::optional<Group> block;
      if (role.is_sharded()) {
        block = group_of(*net.blocks[0]);
        block->set_reduce_scatter_unused_params(true);
        block->unshard().wait();
      }
      for_each_rank_of(role, [&](const Role& rank, double part) {
        const auto loss = [&] { return net.loss(rank.batch(step), rank.rank == 0 ? Order{0, 1} : Order{1}); };
        (role.whole(net, loss) * part).backward();
      });
      if (block) block->reshard();
      values.push_back(role.gradient(net.block(0).weight));
      return Tensor();
    });
    return values;
  });
}

}  // namespace
}  // namespace fsdp::test
