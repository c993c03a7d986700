// What fsdp::optim's optimizers do to memory: runs, padding, state, files.

#include <ATen/record_function.h>
#include <fsdp/optim.h>

#include <sstream>

#include "api/group_view.h"
#include "optim/state_tensors.h"
#include "runtime/param_group.h"
#include "optim/net.h"

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

// Calls of one operator, or passes of one optimizer, on this thread, while it lives.
class Calls {
 public:
  explicit Calls(std::string name) {
    name_of_calls = std::move(name);
    count_of_calls = 0;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& call) {
                                           count_of_calls += name_of_calls == call.name();
                                           return std::unique_ptr<at::ObserverContext>();
                                         }).scopes({at::RecordScope::FUNCTION}));
  }
  ~Calls() { at::removeCallback(handle_); }
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;
  int count() const { return count_of_calls; }

 private:
  inline static thread_local std::string name_of_calls;
  inline static thread_local int count_of_calls = 0;
  at::CallbackHandle handle_;
};

template <class Optimizer>
int calls_of_a_step(Optimizer& optimizer, const std::string& kernel) {
  Calls calls(kernel);
  optimizer.step();
  return calls.count();
}

std::shared_ptr<OptimNet> make_net() {
  torch::manual_seed(7);
  auto net = std::make_shared<OptimNet>();
  net->to(torch::kDouble);
  return net;
}

std::vector<std::shared_ptr<OptimNet>> make_nets(int count) {
  std::vector<std::shared_ptr<OptimNet>> nets;
  for (int i = 0; i < count; ++i) nets.push_back(make_net());
  return nets;
}

TEST(OptimMemory, NeighboursWithGradientsAndEqualOptionsTakeOneCall) {
  auto net = make_net();
  run_thread_ranks(1, [&](int) {
    auto group = fully_shard(static_cast<torch::nn::Module&>(*net));
    optim::AdamW adamw(group.parameters(), AdamWOptions(0.01));
    optim::SGD sgd_without_state(group.parameters(), SGDOptions(0.01));
    backward(*net, kAlone, 1);
    // In the order of memory 'never' has no gradient; what comes before and after it are the runs.
    EXPECT_EQ(calls_of_a_step(adamw, "fsdp::optim::AdamW"), 2);
    EXPECT_EQ(calls_of_a_step(sgd_without_state, "fsdp::optim::SGD"), 2);
    // Equal options in two groups are no reason for another call.
    auto equal = three_groups(*net, AdamWOptions(0.01), AdamWOptions(0.01), AdamWOptions(0.01));
    optim::AdamW in_groups(equal, AdamWOptions(0.01));
    EXPECT_EQ(calls_of_a_step(in_groups, "fsdp::optim::AdamW"), 2);
  });
}

TEST(OptimMemory, AGradientThatLiesElsewhereIsARunOfItsOwnAndNoCopy) {
  auto net = make_net();
  run_thread_ranks(1, [&](int) {
    auto group = fully_shard(static_cast<torch::nn::Module&>(*net));
    optim::SGD optimizer(group.parameters(), SGDOptions(0.5));
    backward(*net, kAlone, 1);
    auto expected = net->in->weight.detach() - 0.5 * 3.0;
    net->in->weight.mutable_grad() = torch::full_like(net->in->weight.detach(), 3.0);
    EXPECT_EQ(calls_of_a_step(optimizer, "fsdp::optim::SGD"), 4);
    EXPECT_EQ(relative_difference(expected, net->in->weight.detach()), 0.0);
    Calls copies("aten::copy_");
    optimizer.step();
    EXPECT_EQ(copies.count(), 0);
  });
}

TEST(OptimMemory, GradientsInAnotherOrderOfMemoryAndSparseOnesAreStillRight) {
  auto net = make_net();
  run_thread_ranks(1, [&](int) {
    fully_shard(static_cast<torch::nn::Module&>(*net));
    auto plain = torch::zeros({4, 3}, torch::kDouble).requires_grad_();
    optim::SGD optimizer({net->in->weight, plain}, SGDOptions(1.0));
    auto gradient = samples({0, 0, 9}, {5});
    auto expected = net->in->weight.detach() - gradient;
    net->in->weight.mutable_grad() = gradient.t().contiguous().t();
    plain.mutable_grad() = torch::eye(4, 3, torch::kDouble).to_sparse();
    optimizer.step();
    EXPECT_EQ(relative_difference(expected, net->in->weight.detach()), 0.0);
    EXPECT_TRUE(torch::equal(plain.detach(), -torch::eye(4, 3, torch::kDouble)));
  });
}

// All of the flat shards that is not a parameter's row.
double largest_padding(const Group& group) {
  double largest = 0;
  for (const auto& member : param_groups(group)) {
    std::vector<torch::Tensor> shards;
    for (auto& flat : member->flats()) shards.push_back(flat.rows().tensor().clone());
    for (size_t i = 0; i < member->slots().size(); ++i) {
      const auto& slot = member->slots()[i];
      const auto place = member->params().place(i);
      const auto& layout = member->flats()[place.flat].layout();
      const int64_t first = layout.offsets[place.item] + slot.rows().first * slot.row_numel() -
                            layout.boundaries[static_cast<size_t>(rank())];
      if (slot.rows_numel() > 0) shards[place.flat].narrow(0, first, slot.rows_numel()).zero_();
    }
    for (const auto& shard : shards)
      if (shard.numel() > 0) largest = std::max(largest, shard.abs().nan_to_num(1e9).max().item<double>());
  }
  return largest;
}

TEST(OptimMemory, PaddingStaysZeroWithDecayMomentumAndWithoutEps) {
  for (int world : worlds_up_to(4)) {
    auto nets = make_nets(8 * world);
    run_thread_ranks(world, [&](int rank) {
      auto train = [&](int i, const auto& make) {
        auto& net = *nets[static_cast<size_t>(8 * rank + i)];
        auto group = fully_shard(static_cast<torch::nn::Module&>(net));
        auto optimizer = make(group.parameters());
        for (int step = 0; step < 3; ++step) {
          optimizer.zero_grad();
          backward(net, {world, rank}, step);
          optimizer.step();
        }
        EXPECT_EQ(largest_padding(group), 0.0) << i;
      };
      train(0, [](auto p) { return optim::AdamW(p, AdamWOptions(0.1).weight_decay(0.5).amsgrad(true)); });
      train(1, [](auto p) { return optim::SGD(p, SGDOptions(0.1).weight_decay(0.5).momentum(0.9).nesterov(true)); });
      train(2, [](auto p) { return optim::AdamW(p, AdamWOptions(0.1).eps(0)); });
      train(3, [](auto p) { return optim::Adadelta(p, AdadeltaOptions().weight_decay(0.5)); });
      train(4, [](auto p) { return optim::Adadelta(p, AdadeltaOptions().eps(0)); });
      train(5, [](auto p) { return optim::RMSprop(p, RMSpropOptions(0.1).centered(true).momentum(0.5)); });
      train(6, [](auto p) { return optim::Adagrad(p, AdagradOptions(0.1).eps(0)); });
      train(7, [](auto p) { return optim::Adagrad(p, AdagradOptions(0.1).initial_accumulator_value(0.1)); });
    });
  }
}

TEST(OptimMemory, AStepIsNotInterceptedBumpsVersionsAndMakesWholeCopiesStale) {
  auto nets = make_nets(2);
  run_thread_ranks(2, [&](int rank) {
    auto& net = *nets[static_cast<size_t>(rank)];
    auto group = fully_shard(static_cast<torch::nn::Module&>(net));
    group.set_reshard_after_backward(false);
    optim::AdamW optimizer(group.parameters(), AdamWOptions(0.1));
    backward(net, {2, rank}, 1);
    const auto before = full_tensor(net.in->weight);
    const auto intercepted = group.stats().intercepted_operators, version = net.in->weight._version();
    optimizer.step();
    EXPECT_EQ(group.stats().intercepted_operators, intercepted);
    EXPECT_GT(net.in->weight._version(), version);
    torch::NoGradGuard no_grad;
    ForwardScope scope(group);
    EXPECT_GT((net.in->weight * 1.0 - before).abs().min().item<double>(), 0.05);  // lr 0.1 moves each element by that
  });
}

// Over shared memory the ranks are still readers of rows, of two groups, when they begin to write them.
TEST(OptimMemory, AStepAfterAScopeWithoutBackwardWritesOnEveryRank) {
  auto nets = make_nets(3);
  run_thread_ranks(3, [&](int rank) {
    auto& net = *nets[static_cast<size_t>(rank)];
    shard_in_two(net);
    auto group = group_of(net);
    optim::SGD optimizer(group.parameters(), SGDOptions(0.5));
    backward(net, {3, rank}, 1);
    const auto expected = full_tensor(net.in->weight) - 0.5 * full_grad(net.in->weight);
    {
      ForwardScope scope(group);
      net.loss({1, 0, 2});
    }
    optimizer.step();
    fsdp::barrier();
    EXPECT_EQ(relative_difference(expected, full_tensor(net.in->weight)), 0.0);
  });
}

TEST(OptimMemory, StateIsMadeWithTheFirstGradientAndCountedWhileItLives) {
  for (int world : worlds_up_to(3)) {
    auto nets = make_nets(world);
    run_thread_ranks(world, [&](int rank) {
      auto& net = *nets[static_cast<size_t>(rank)];
      auto group = fully_shard(static_cast<torch::nn::Module&>(net));
      auto rows_with_gradient = [&] {
        int64_t bytes = 0;
        for (const auto& parameter : net.parameters())
          if (parameter.grad().defined()) bytes += static_cast<int64_t>(parameter.grad().nbytes());
        return bytes;
      };
      {
        optim::AdamW optimizer(group.parameters(), AdamWOptions(0.1));
        EXPECT_EQ(group.stats().optimizer.current, 0);
        for (int step : {0, 1, 2}) {  // 'sometimes' has its first gradient in step 1
          backward(net, {world, rank}, step);
          optimizer.step();
          constexpr int64_t kMostPadding = 2 * 64 * 20;  // two moments, 64 bytes for each of 20 parameters
          EXPECT_GE(group.stats().optimizer.current, 2 * rows_with_gradient());
          EXPECT_LE(group.stats().optimizer.current, 2 * rows_with_gradient() + kMostPadding);
          EXPECT_EQ(optimizer.state_bytes(), 2 * rows_with_gradient());
        }
        const auto& state = optimizer.state().at(net.in->weight.unsafeGetTensorImpl());
        const auto& moments = static_cast<const AdamWParamState&>(*state);
        EXPECT_EQ(moments.step(), 3);
        EXPECT_EQ(moments.exp_avg().sizes(), net.in->weight.sizes());
        EXPECT_EQ(moments.exp_avg().storage().nbytes(), net.in->weight.nbytes());
        EXPECT_FALSE(optimizer.state().count(net.never->weight.unsafeGetTensorImpl()));
        EXPECT_FALSE(optimizer.state().count(net.frozen.unsafeGetTensorImpl()));
      }
      EXPECT_EQ(group.stats().optimizer.current, 0);
      EXPECT_GT(group.stats().optimizer.peak, 0);
    });
  }
}

template <class Optimizer, class Options>
void expect_loaded_optimizer_goes_on(const Options& options) {
  for (int world : worlds_up_to(3)) {
    auto nets = make_nets(2 * world);
    run_thread_ranks(world, [&](int rank) {
      auto &net = *nets[static_cast<size_t>(2 * rank)], &other = *nets[static_cast<size_t>(2 * rank + 1)];
      shard_in_two(net);
      shard_in_two(other);
      auto train = [&](OptimNet& trained, auto& optimizer, int first) {
        for (int step = first; step < first + 3; ++step) {
          optimizer.zero_grad();
          backward(trained, {world, rank}, step);
          optimizer.step();
        }
      };
      Optimizer optimizer(net.parameters(), options);
      train(net, optimizer, 0);
      std::stringstream file;
      torch::save(optimizer, file);
      {
        torch::NoGradGuard no_grad;
        for (size_t i = 0; i < net.parameters().size(); ++i) other.parameters()[i].copy_(net.parameters()[i]);
      }
      auto without_options = options;
      without_options.set_lr(1.0);  // comes from the file
      Optimizer loaded(other.parameters(), without_options);
      torch::load(loaded, file);
      for (auto& [key, state] : loaded.state()) EXPECT_TRUE(state);
      train(net, optimizer, 3);
      train(other, loaded, 3);
      for (size_t i = 0; i < net.parameters().size(); ++i)
        EXPECT_TRUE(torch::equal(full_tensor(net.parameters()[i]), full_tensor(other.parameters()[i]))) << i;
    });
  }
}

TEST(OptimMemory, ALoadedOptimizerGoesOnWithTheSameBits) {
  expect_loaded_optimizer_goes_on<optim::AdamW>(AdamWOptions(0.01).amsgrad(true));
  expect_loaded_optimizer_goes_on<optim::SGD>(SGDOptions(0.05).momentum(0.9).dampening(0.1));
  expect_loaded_optimizer_goes_on<optim::Adadelta>(AdadeltaOptions(0.5).rho(0.8).eps(1e-5));
  expect_loaded_optimizer_goes_on<optim::Adam>(AdamOptions(0.01).weight_decay(0.1));
  expect_loaded_optimizer_goes_on<optim::RMSprop>(RMSpropOptions(0.01).centered(true).momentum(0.9));
  expect_loaded_optimizer_goes_on<optim::Adagrad>(AdagradOptions(0.05).initial_accumulator_value(0.1).lr_decay(0.1));
}

TEST(OptimMemory, LoadedStateLiesFlatAndIsCounted) {
  auto net = make_net();
  run_thread_ranks(1, [&](int) {
    auto group = fully_shard(static_cast<torch::nn::Module&>(*net));
    std::stringstream file;
    {
      optim::AdamW optimizer(group.parameters(), AdamWOptions(0.01));
      backward(*net, kAlone, 1);
      optimizer.step();
      torch::save(optimizer, file);
    }
    optim::AdamW loaded(group.parameters(), AdamWOptions(0.01));
    EXPECT_EQ(group.stats().optimizer.current, 0);
    torch::load(loaded, file);
    EXPECT_GT(group.stats().optimizer.current, 0);
    EXPECT_EQ(calls_of_a_step(loaded, "fsdp::optim::AdamW"), 2);
  });
}

// Torch's steps, ours loads and saves, torch's loads again: what it has then is what it had.
template <class Torchs, class Ours, class Options>
void expect_files_of_torchs(const Options& options) {
  auto net = make_net();
  run_thread_ranks(1, [&](int) {
    fully_shard(static_cast<torch::nn::Module&>(*net));
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
    for (const auto& parameter : net->parameters()) {
      auto* key = parameter.unsafeGetTensorImpl();
      ASSERT_EQ(torchs.state().count(key), again.state().count(key));
      if (!torchs.state().count(key)) continue;
      const auto expected = optim::tensors_of(*torchs.state().at(key));
      const auto found = optim::tensors_of(*again.state().at(key));
      ASSERT_FALSE(expected.empty());
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(expected[i]->defined(), found[i]->defined());
        EXPECT_TRUE(!expected[i]->defined() || torch::equal(*expected[i], *found[i]));
      }
    }
    EXPECT_EQ(again.param_groups()[0].options().get_lr(), torchs.param_groups()[0].options().get_lr());
    // Both go on alike, also in what is counted.
    const auto before = net->in->weight.detach().clone();
    again.step();
    const auto expected = net->in->weight.detach().clone();
    {
      torch::NoGradGuard no_grad;
      net->in->weight.copy_(before);
    }
    ours.step();
    EXPECT_LE(relative_difference(expected, net->in->weight.detach()), 1e-14);
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
  auto net = make_net();
  run_thread_ranks(1, [&](int) {
    auto group = fully_shard(static_cast<torch::nn::Module&>(*net));
    optim::SGD optimizer(group.parameters(), SGDOptions(0.1));
    torch::NoGradGuard no_grad;
    torch::Tensor evaluated;
    auto loss = optimizer.step([&] {
      optimizer.zero_grad();
      {
        ForwardScope scope(group);
        evaluated = net->loss({1, 0, 2});
      }
      evaluated.backward();
      return evaluated;
    });
    EXPECT_TRUE(loss.is_same(evaluated));
    EXPECT_TRUE(net->in->weight.grad().defined());
  });
}

}  // namespace
}  // namespace fsdp::test
