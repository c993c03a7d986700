// Tests how fsdp::optim's optimizers use memory: neighbouring parameters updated in one call, padding, and state; and
// that their files are those of torch::optim.

#include <fsdp/optim.h>

#include <sstream>

#include "api/group_view.h"
#include "optim/every_optimizer.h"
#include "optim/net.h"
#include "runtime/param_group.h"

namespace fsdp::test {
namespace {

using optim::AdadeltaOptions;
using torch::optim::AdagradOptions;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;
using torch::optim::RMSpropOptions;
using torch::optim::SGDOptions;

const Role kAlone{1, 0};

Group shard_as_one(OptimNet& net) { return fully_shard(static_cast<torch::nn::Module&>(net)); }

TEST(OptimMemory, NeighboursWithGradientsAndEqualOptionsTakeOneCall) {
  run_thread_ranks(1, [&](int) {
    const auto net = optim_net();
    auto group = shard_as_one(*net);
    optim::AdamW adamw(group.parameters(), AdamWOptions(0.01));
    optim::SGD sgd_without_state(group.parameters(), SGDOptions(0.01));
    backward(*net, kAlone, 1);
    // 'never' has no gradient, so the parameters before and after it in memory form one run each.
    EXPECT_EQ(calls_of_a_step(adamw, "fsdp::optim::"), 2);
    EXPECT_EQ(calls_of_a_step(sgd_without_state, "fsdp::optim::"), 2);
    // Equal options in several parameter groups need no more calls.
    auto equal = three_groups(*net, AdamWOptions(0.01), AdamWOptions(0.01), AdamWOptions(0.01));
    optim::AdamW in_groups(equal, AdamWOptions(0.01));
    EXPECT_EQ(calls_of_a_step(in_groups, "fsdp::optim::"), 2);
    // State that was loaded from a file needs no more calls either, and the group's statistics count it.
    std::stringstream file;
    torch::save(adamw, file);
    optim::AdamW loaded(group.parameters(), AdamWOptions(0.01));
    const auto before = group.stats().optimizer.current;
    torch::load(loaded, file);
    EXPECT_GT(group.stats().optimizer.current, before);
    EXPECT_EQ(calls_of_a_step(loaded, "fsdp::optim::"), 2);
  });
}

TEST(OptimMemory, AGradientThatLiesElsewhereIsARunOfItsOwnAndNoCopy) {
  run_thread_ranks(1, [&](int) {
    const auto net = optim_net();
    const auto group = shard_as_one(*net);
    optim::SGD optimizer(group.parameters(), SGDOptions(0.5));
    backward(*net, kAlone, 1);
    const auto& p = net->in->weight;
    auto expected = p.detach() - 0.5 * 3.0;
    p.mutable_grad() = torch::full_like(p.detach(), 3.0);
    EXPECT_EQ(calls_of_a_step(optimizer, "fsdp::optim::SGD"), 4);
    EXPECT_EQ(relative_difference(expected, p.detach()), 0.0);
    EXPECT_EQ(calls_of_a_step(optimizer, "aten::copy_"), 0);

    // A gradient may have other strides, or be sparse.
    auto plain = torch::zeros({4, 3}, torch::kDouble).requires_grad_();
    optim::SGD of_two({p, plain}, SGDOptions(1.0));
    const auto gradient = samples({0, 0, 9}, {5});
    expected = p.detach() - gradient;
    p.mutable_grad() = gradient.t().contiguous().t();
    plain.mutable_grad() = torch::eye(4, 3, torch::kDouble).to_sparse();
    of_two.step();
    EXPECT_EQ(relative_difference(expected, p.detach()), 0.0);
    EXPECT_TRUE(torch::equal(plain.detach(), -torch::eye(4, 3, torch::kDouble)));
  });
}

// Returns the largest magnitude in the flat shards outside the parameters' rows.
double largest_padding(const Group& group) {
  double largest = 0;
  for (const auto& member : param_groups(group)) {
    std::vector<torch::Tensor> shards;
    for (auto& flat : member->flats()) shards.push_back(flat.rows().tensor().clone());
    for (const auto& slot : member->slots()) {
      const auto plane = slot.place.plane;
      const int64_t first = slot.offset_of_rows() - rank() * member->flats()[plane].plane().slice_numel;
      if (slot.rows_numel() > 0) shards[plane].narrow(0, first, slot.rows_numel()).zero_();
    }
    for (const auto& shard : shards)
      if (shard.numel() > 0) largest = std::max(largest, shard.abs().nan_to_num(1e9).max().item<double>());
  }
  return largest;
}

TEST(OptimMemory, PaddingStaysZeroWithDecayMomentumAndWithoutEps) {
  auto optimizers = every_optimizer();
  optimizers.push_back(optimizer_case<optim::AdamW>("AdamW without eps", AdamWOptions(0.1).eps(0), 2));
  optimizers.push_back(optimizer_case<optim::Adadelta>("Adadelta without eps", AdadeltaOptions().eps(0), 2));
  optimizers.push_back(optimizer_case<optim::Adagrad>("Adagrad without eps", AdagradOptions(0.1).eps(0), 1));
  for (const auto& optimizer : optimizers) {
    SCOPED_TRACE(optimizer.name);
    run_thread_ranks(3, [&](int rank) {
      const auto net = optim_net();
      const auto group = shard_as_one(*net);
      const auto made = optimizer.make(group.parameters(), {});
      for (int step = 0; step < 3; ++step) {
        made.torchs->zero_grad();
        backward(*net, {3, rank}, step);
        made.torchs->step();
      }
      EXPECT_EQ(largest_padding(group), 0.0);
    });
  }
}

TEST(OptimMemory, AStepIsNotInterceptedBumpsVersionsAndMakesWholeCopiesStale) {
  run_thread_ranks(2, [&](int rank) {
    const auto net = optim_net();
    const auto& p = net->in->weight;
    auto group = shard_as_one(*net);
    group.set_reshard_after_backward(false);
    optim::AdamW optimizer(group.parameters(), AdamWOptions(0.1));
    backward(*net, {2, rank}, 1);
    const auto before = full_tensor(p);
    const auto intercepted = group.stats().intercepted_operators, version = p._version();
    optimizer.step();
    EXPECT_EQ(group.stats().intercepted_operators, intercepted);
    EXPECT_GT(p._version(), version);
    torch::NoGradGuard no_grad;
    ForwardScope scope(group);
    EXPECT_GT((p * 1.0 - before).abs().min().item<double>(), 0.05);  // a step moves each element by about 0.1
  });
}

// Over shared memory, ranks still count as readers of two groups' rows when they begin to write them.
TEST(OptimMemory, AStepAfterAScopeWithoutBackwardWritesOnEveryRank) {
  run_thread_ranks(3, [&](int rank) {
    const auto net = optim_net();
    shard_in_two(*net);
    auto group = group_of(*net);
    optim::SGD optimizer(group.parameters(), SGDOptions(0.5));
    backward(*net, {3, rank}, 1);
    const auto expected = full_tensor(net->in->weight) - 0.5 * full_grad(net->in->weight);
    {
      ForwardScope scope(group);
      net->loss({1, 0, 2});
    }
    optimizer.step();
    fsdp::barrier();
    EXPECT_EQ(relative_difference(expected, full_tensor(net->in->weight)), 0.0);
  });
}

TEST(OptimMemory, StateIsMadeWithTheFirstGradientAndCountedWhileItLives) {
  for (int world : {1, 3})
    run_thread_ranks(world, [&](int rank) {
      const auto net = optim_net();
      auto group = shard_as_one(*net);
      {
        optim::AdamW optimizer(group.parameters(), AdamWOptions(0.1));
        EXPECT_EQ(group.stats().optimizer.current, 0);
        for (int step : {0, 1, 2}) {  // 'sometimes' has its first gradient in step 1
          backward(*net, {world, rank}, step);
          optimizer.step();
          int64_t moments = 0;
          for (const auto& parameter : net->parameters())
            if (parameter.grad().defined()) moments += 2 * static_cast<int64_t>(parameter.grad().nbytes());
          constexpr int64_t kMostPadding = 2 * 64 * 20;  // two moments, and 64 bytes for each of 20 parameters
          EXPECT_GE(group.stats().optimizer.current, moments);
          EXPECT_LE(group.stats().optimizer.current, moments + kMostPadding);
          EXPECT_EQ(optimizer.state_bytes(), moments);
        }
        const auto& p = net->in->weight;
        const auto& moments = static_cast<const AdamWParamState&>(*optimizer.state().at(p.unsafeGetTensorImpl()));
        EXPECT_EQ(moments.step(), 3);
        EXPECT_EQ(moments.exp_avg().sizes(), p.sizes());
        EXPECT_EQ(moments.exp_avg().storage().nbytes(), p.nbytes());
        EXPECT_FALSE(optimizer.state().count(net->never->weight.unsafeGetTensorImpl()));
        EXPECT_FALSE(optimizer.state().count(net->frozen.unsafeGetTensorImpl()));
      }
      EXPECT_EQ(group.stats().optimizer.current, 0);
      EXPECT_GT(group.stats().optimizer.peak, 0);
    });
}

TEST(OptimMemory, ALoadedOptimizerGoesOnWithTheSameBits) {
  for (const auto& optimizer : every_optimizer()) {
    SCOPED_TRACE(optimizer.name);
    run_thread_ranks(2, [&](int rank) {
      const auto net = optim_net(), other = optim_net();
      shard_in_two(*net);
      shard_in_two(*other);
      const auto train = [&](OptimNet& trained, torch::optim::Optimizer& by, int first) {
        for (int step = first; step < first + 2; ++step) {
          by.zero_grad();
          backward(trained, {2, rank}, step);
          by.step();
        }
      };
      const auto saved = optimizer.make(net->parameters(), {}), loaded = optimizer.make(other->parameters(), {});
      train(*net, *saved.torchs, 0);
      std::stringstream file;
      torch::save(*saved.torchs, file);
      copy_rows(*net, *other);
      loaded.torchs->param_groups()[0].options().set_lr(1.0);  // the file replaces this rate
      torch::load(*loaded.torchs, file);
      for (auto& [key, state] : loaded.torchs->state()) EXPECT_TRUE(state);
      train(*net, *saved.torchs, 2);
      train(*other, *loaded.torchs, 2);
      for (size_t i = 0; i < net->parameters().size(); ++i)
        EXPECT_TRUE(torch::equal(full_tensor(net->parameters()[i]), full_tensor(other->parameters()[i]))) << i;
    });
  }
}

// Torch's optimizer steps and saves, fsdp's loads and saves that file, and torch's loads it again.
template <class Torchs, class Ours, class Options>
void expect_files_of_torchs(const Options& options) {
  run_thread_ranks(1, [&](int) {
    const auto net = optim_net();
    shard_as_one(*net);
    Torchs torchs(net->parameters(), options);
    backward(*net, kAlone, 1);
    torchs.step();
    std::stringstream file, back;
    torch::save(torchs, file);
    Ours ours(net->parameters(), Options(0.5));
    torch::load(ours, file);
    torch::save(ours, back);
    Torchs again(net->parameters(), Options(0.5));
    torch::load(again, back);
    // All three take the same steps from here, with the same step counts.
    const auto before = net->in->weight.detach().clone();
    const auto step_of = [&](torch::optim::Optimizer& by) {
      {
        const torch::NoGradGuard no_grad;
        net->in->weight.copy_(before);
      }
      by.step();
      return net->in->weight.detach().clone();
    };
    const auto expected = step_of(torchs);
    EXPECT_TRUE(torch::equal(expected, step_of(again)));
    EXPECT_LE(relative_difference(expected, step_of(ours)), 1e-14);
  });
}

TEST(OptimMemory, FilesAreThoseOfTorchsOptimizers) {
  expect_files_of_torchs<torch::optim::AdamW, optim::AdamW>(AdamWOptions(0.01).amsgrad(true));
  expect_files_of_torchs<torch::optim::Adam, optim::Adam>(AdamOptions(0.01));
  expect_files_of_torchs<torch::optim::SGD, optim::SGD>(SGDOptions(0.01).momentum(0.9));
  expect_files_of_torchs<torch::optim::RMSprop, optim::RMSprop>(RMSpropOptions(0.01).centered(true).momentum(0.9));
  expect_files_of_torchs<torch::optim::Adagrad, optim::Adagrad>(AdagradOptions(0.01).initial_accumulator_value(0.1));
}

TEST(OptimMemory, AClosureIsEvaluatedWithRecordingAndItsLossReturned) {
  const auto parameter = torch::ones({3}).requires_grad_();
  optim::SGD optimizer({parameter}, SGDOptions(0.1));
  const torch::NoGradGuard no_grad;
  torch::Tensor evaluated;
  const auto loss = optimizer.step([&] {
    evaluated = parameter.square().sum();
    evaluated.backward();
    return evaluated;
  });
  EXPECT_TRUE(loss.is_same(evaluated));
  EXPECT_TRUE(parameter.allclose(torch::full({3}, 0.8)));
}

}  // namespace
}  // namespace fsdp::test
