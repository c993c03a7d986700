// Forwards and backwards that are not the same each time, and what may happen between them.

#include "support/oracle.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

struct OrderNet : nn::Module {
  nn::Linear in{4, 6};
  nn::ModuleList blocks;
  nn::Linear out{6, 3};
  OrderNet() {
    register_module("in", in);
    for (int i = 0; i < 4; ++i) blocks->push_back(nn::Linear(6, 6));
    register_module("blocks", blocks);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& x, const std::vector<size_t>& order = {0, 1, 2, 3}) {
    auto h = in->forward(x);
    for (size_t i : order) h = h + torch::tanh(blocks[i]->as<nn::Linear>()->forward(h));
    return out->forward(h);
  }
};

Program<OrderNet> order_program(std::function<Values(OrderNet&, const Role&)> run) {
  Program<OrderNet> program;
  program.build = [] { return std::make_shared<OrderNet>(); };
  program.shard = [](OrderNet& net, const FullyShardOptions& options) {
    for (auto& block : *net.blocks) fully_shard(*block, options);
    fully_shard(static_cast<nn::Module&>(net), options);
  };
  program.run = std::move(run);
  return program;
}

torch::Tensor net_loss(OrderNet& net, const Batch& batch, const std::vector<size_t>& order = {0, 1, 2, 3}) {
  return distance_from_targets(net.forward(samples(batch, {4}), order), batch);
}

// Training in which step i takes the blocks in the order `orders[i]`.
Program<OrderNet> program_of_orders(const std::vector<std::vector<size_t>>& orders) {
  return order_program([=](OrderNet& net, const Role& role) {
    auto optimizer = sgd(net.parameters());
    Values losses;
    for (size_t step = 0; step < orders.size(); ++step) {
      optimizer.zero_grad();
      auto loss = role.whole(net, [&] { return net_loss(net, role.batch(static_cast<int>(step)), orders[step]); });
      loss.backward();
      optimizer.step();
      losses.push_back(loss.detach());
    }
    return losses;
  });
}

TEST(ZooOrder, BlocksInAnotherOrderEachStepEqualTheUnshardedRun) {
  expect_equals_unsharded(program_of_orders({{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}, {2, 0, 3, 1}}));
}

TEST(ZooOrder, BlocksLeftOutAndRepeatedEqualTheUnshardedRun) {
  expect_equals_unsharded(program_of_orders({{0, 1, 2, 3}, {2}, {0, 0, 3, 0}, {}, {1, 2, 1, 2, 3}}));
}

TEST(ZooOrder, EvaluationBetweenForwardAndBackwardEqualsTheUnshardedRun) {
  expect_equals_unsharded(order_program([](OrderNet& net, const Role& role) {
    auto optimizer = sgd(net.parameters());
    Values losses;
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      auto loss = role.whole(net, [&] { return net_loss(net, role.batch(step)); });
      {
        torch::NoGradGuard no_grad;
        losses.push_back(role.whole(net, [&] { return net_loss(net, role.batch(step + 20), {1, 2}); }));
      }
      loss.backward();
      optimizer.step();
      losses.push_back(loss.detach());
    }
    return losses;
  }));
}

TEST(ZooOrder, PartOfForwardWithoutGradEqualsTheUnshardedRun) {
  expect_equals_unsharded(order_program([](OrderNet& net, const Role& role) {
    return train(net, role, [](OrderNet& m, const Batch& batch) {
      torch::Tensor target;
      {
        torch::NoGradGuard no_grad;
        target = m.forward(samples(batch, {4}) * 0.5, {3, 1});
      }
      return torch::mse_loss(m.forward(samples(batch, {4}), {0, 1, 2}), target);
    });
  }));
}

TEST(ZooOrder, ForwardWithoutABackwardLeavesTrainingAlone) {
  expect_equals_unsharded(order_program([](OrderNet& net, const Role& role) {
    auto optimizer = sgd(net.parameters());
    Values losses;
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      role.whole(net, [&] { return net_loss(net, role.batch(step + 30)); });  // recorded, then dropped
      auto loss = role.whole(net, [&] { return net_loss(net, role.batch(step)); });
      loss.backward();
      optimizer.step();
      losses.push_back(loss.detach());
    }
    return losses;
  }));
}

struct SometimesBiased : nn::Module {
  nn::Linear first{4, 3}, last{3, 3};
  SometimesBiased() {
    register_module("first", first);
    register_module("last", last);
  }
  torch::Tensor forward(const torch::Tensor& x, bool is_biased) {
    auto h = torch::tanh(first->forward(x));
    return is_biased ? last->forward(h) : torch::linear(h, last->weight);
  }
};

// `share`: what rank `rank` does with its batch; gradients are those of its losses times `part`.
template <class Net>
Program<Net> program_of_shares(std::function<void(Net&, const Role&, int rank, const Batch&, double part)> share) {
  Program<Net> program;
  program.build = [] { return std::make_shared<Net>(); };
  program.shard = shard_children_then_root;
  program.run = [share = std::move(share)](Net& net, const Role& role) {
    const int first = role.is_sharded() ? role.rank : 0, count = role.is_sharded() ? 1 : role.world;
    for (int rank = first; rank < first + count; ++rank)
      share(net, role, rank, Role{role.world, rank, role.samples_per_rank}.batch(0), 1.0 / count);
    Values gradients;
    for (const auto& parameter : net.parameters())
      if (parameter.requires_grad()) gradients.push_back(role.gradient(parameter));
    return gradients;
  };
  return program;
}

// After its forward `first` was in a scope that read nothing, and `last` in one that might be computed again, so that
// only the ranks that gave its bias a gradient find it complete before `first` is read.
TEST(ZooOrder, ScopesAfterTheForwardLeaveTheOrderOfReductionsTheSameOnEveryRank) {
  expect_equals_unsharded(program_of_shares<SometimesBiased>([](SometimesBiased& net, const Role& role, int rank,
                                                                const Batch& batch, double part) {
    auto x = samples(batch, {4}).requires_grad_();  // so that the backward of `first` reads its weight
    auto loss = role.whole(net, [&] { return distance_from_targets(net.forward(x, /*is_biased=*/rank == 0), batch); });
    role.whole(*net.first, [] {});
    {
      torch::NoGradGuard no_grad;
      role.whole(*net.last, [&] { net.last->forward(samples(batch, {3})); });
    }
    (loss * part).backward();
  }));
}

// Where the bias was read without gradients, it might get one yet: only the other ranks find `last` complete in
// backward, before the scope goes on.
TEST(ZooOrder, AForwardAfterABackwardInItsScopeGathersTheSameOnEveryRank) {
  expect_equals_unsharded(program_of_shares<SometimesBiased>(
      [](SometimesBiased& net, const Role& role, int rank, const Batch& batch, double part) {
        auto loss = [&](bool is_biased) {
          return distance_from_targets(net.forward(samples(batch, {4}), is_biased), batch) * part;
        };
        role.whole(net, [&] {
          {
            torch::NoGradGuard no_grad;
            loss(/*is_biased=*/rank == 0);
          }
          loss(/*is_biased=*/false).backward();
          loss(/*is_biased=*/true).backward();
        });
      }));
}

struct ReadTwice : nn::Module {
  nn::Linear first{4, 3}, twice{3, 3}, between{3, 3};
  ReadTwice() {
    register_module("first", first);
    register_module("twice", twice)->weight.set_requires_grad(false);
    register_module("between", between);
  }
  torch::Tensor forward(const torch::Tensor& x, bool is_biased_first) {
    auto h = torch::linear(torch::tanh(first->forward(x)), twice->weight, is_biased_first ? twice->bias : none);
    h = torch::tanh(between->forward(torch::tanh(h)));
    return torch::linear(h, twice->weight, is_biased_first ? none : twice->bias);
  }
  const torch::Tensor none;
};

// In the middle of backward the ranks that used the bias last have its gradient, the others miss it; then all of them
// read the frozen weight once more.
TEST(ZooOrder, AGroupReadTwiceInABackwardIsGatheredTheSameOnEveryRankWhicheverHasItsGradients) {
  auto program =
      program_of_shares<ReadTwice>([](ReadTwice& net, const Role& role, int rank, const Batch& batch, double part) {
        for (int pass = 0; pass < 3; ++pass)
          (role.whole(net, [&] { return distance_from_targets(net.forward(samples(batch, {4}), rank == 0), batch); }) *
           part)
              .backward();
      });
  expect_equals_unsharded(program);
  program.shard = [](ReadTwice& net, const FullyShardOptions& options) {  // nothing that is read is apart from the root
    fully_shard(*net.first, options);
    fully_shard(*net.between, options);
    fully_shard(static_cast<nn::Module&>(net), options);
  };
  expect_equals_unsharded(program);
}

// As unsharded: what backward needs was changed after forward.
TEST(ZooOrder, WriteBetweenForwardAndBackwardIsAutogradsError) {
  for (int world : worlds_up_to(2)) {
    std::vector<std::shared_ptr<OrderNet>> nets;
    for (int r = 0; r < world; ++r) nets.push_back(build_alike([] { return std::make_shared<OrderNet>(); }));
    run_thread_ranks(world, [&](int r) {
      auto model = fully_shard(nets[static_cast<size_t>(r)]);
      auto loss = model(torch::ones({2, 4})).sum();
      {
        torch::NoGradGuard no_grad;
        for (auto& parameter : model.parameters()) parameter.mul_(0.5);
      }
      EXPECT_THROW(loss.backward(), c10::Error);
      model.reset_iter_state();
    });
  }
}

// One operator takes parameters of three groups, then a penalty takes all.
TEST(ZooOrder, OperatorsOnParametersOfSeveralGroupsEqualTheUnshardedRun) {
  expect_equals_unsharded(order_program([](OrderNet& net, const Role& role) {
    return train(net, role, [](OrderNet& m, const Batch& batch) {
      auto weight = [&](size_t i) { return m.blocks[i]->as<nn::Linear>()->weight; };
      auto h = torch::linear(m.in->forward(samples(batch, {4})), torch::cat({weight(0), weight(2), weight(3)}));
      h = torch::einsum("bi,ij,jk->bk", {h.slice(1, 0, 6), weight(1), m.out->weight.t()});
      auto loss = distance_from_targets(h, batch);
      for (const auto& parameter : m.parameters()) loss = loss + 0.01 * (parameter * parameter).sum();
      return loss;
    });
  }));
}

TEST(ZooOrder, GradientsChangedByHandBeforeTheStepEqualTheUnshardedRun) {
  expect_equals_unsharded(order_program([](OrderNet& net, const Role& role) {
    auto optimizer = sgd(net.parameters());
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      role.whole(net, [&] { return net_loss(net, role.batch(step)); }).backward();
      torch::NoGradGuard no_grad;
      for (auto& parameter : net.parameters()) {
        parameter.grad().mul_(0.5).clamp_(-0.1, 0.1);
        parameter.mutable_grad() = parameter.grad() + parameter * 0.01;
      }
      optimizer.step();
    }
    return Values{role.gradient(net.in->weight)};
  }));
}

// Hooks of the user on a parameter see whole gradients of this rank, before they are summed.
TEST(ZooOrder, HooksOnParametersSeeWholeGradients) {
  expect_equals_unsharded(order_program([](OrderNet& net, const Role& role) {
    net.in->weight.register_hook([](const torch::Tensor& gradient) {
      EXPECT_EQ(gradient.sizes(), (std::vector<int64_t>{6, 4}));
      return gradient * 2.0;
    });
    return train(net, role, [](OrderNet& m, const Batch& batch) { return net_loss(m, batch); });
  }));
}

Program<OrderNet> program_with(const std::function<void(OrderNet&)>& configure) {
  return order_program([=](OrderNet& net, const Role& role) {
    if (role.is_sharded()) configure(net);
    return train(net, role, [](OrderNet& m, const Batch& batch) { return net_loss(m, batch); });
  });
}

TEST(ZooOrder, WholeParametersKeptAfterBackwardAreRenewedAfterTheStep) {
  expect_equals_unsharded(program_with([](OrderNet& net) { group_of(net).set_reshard_after_backward(false); }));
}

TEST(ZooOrder, WholeParametersKeptForBackwardEqualTheUnshardedRun) {
  expect_equals_unsharded(program_with([](OrderNet& net) {
    for (auto& block : *net.blocks) group_of(*block).set_unshard_in_backward(false);
  }));
}

TEST(ZooOrder, PrefetchListsEvenUselessOnesEqualTheUnshardedRun) {
  expect_equals_unsharded(program_with([](OrderNet& net) {
    auto group = [&](size_t i) { return group_of(*net.blocks[i]); };
    group(0).set_modules_to_forward_prefetch({group(1), group(3)});
    group(1).set_modules_to_forward_prefetch({group(0)});
    group(3).set_modules_to_backward_prefetch({group(1), group(0)});
    group(0).set_modules_to_backward_prefetch({group(3)});
  }));
}

TEST(ZooOrder, DivideFactorOfOneGivesTheSumOverTheRanks) {
  expect_equals_unsharded(order_program([](OrderNet& net, const Role& role) {
    if (role.is_sharded()) group_of(net).set_gradient_divide_factor(1.0);  // of the root only
    role.whole(net, [&] { return net_loss(net, role.batch(0)); }).backward();
    auto factor = role.is_sharded() ? 1.0 : static_cast<double>(role.world);
    return Values{role.gradient(net.in->weight) * factor, role.gradient(net.blocks[1]->as<nn::Linear>()->weight)};
  }));
}

// The first block is whole on every rank; only rank 0 uses it, and the others say that they take part in its reduction.
TEST(ZooOrder, GroupReachedBySomeRanksIsReducedByThoseThatAskForIt) {
  auto program = order_program([](OrderNet& net, const Role& role) {
    auto optimizer = sgd(net.parameters());
    Values losses;
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      auto share = [&](int rank) {
        auto batch = Role{role.world, rank, role.samples_per_rank}.batch(step);
        return net_loss(net, batch, rank == 0 ? std::vector<size_t>{0, 1} : std::vector<size_t>{1});
      };
      if (role.is_sharded()) {
        auto block = group_of(*net.blocks[0]);
        block.set_reduce_scatter_unused_params(true);
        block.unshard().wait();
        role.whole(net, [&] { return share(role.rank); }).backward();
        block.reshard();
      } else {
        for (int r = 0; r < role.world; ++r) (share(r) / role.world).backward();
      }
      losses.push_back(role.gradient(net.blocks[0]->as<nn::Linear>()->weight));
      optimizer.step();
    }
    return losses;
  });
  expect_equals_unsharded(program);
}

}  // namespace
}  // namespace fsdp::test
