// Calls through the handle, with any arguments and results, and the holders that can be given to fully_shard.

#include <map>

#include "api/group_view.h"
#include "support/oracle.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

struct Prediction {
  torch::Tensor mean, spread;
  std::string note;
};

struct Query {
  std::vector<torch::Tensor> parts;
  double scale = 1.0;
};

struct AnyCallImpl : nn::Module {
  nn::Linear a{4, 3}, b{4, 3};
  AnyCallImpl() {
    register_module("a", a);
    register_module("b", b);
  }
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& y, int64_t repeats = 1, bool swap = false) {
    auto sum = swap ? b->forward(x) + a->forward(y) : a->forward(x) + b->forward(y);
    return sum * static_cast<double>(repeats);
  }
  Prediction forward(const Query& query, const std::string& note) {
    return {a->forward(query.parts.at(0)) * query.scale, torch::softmax(b->forward(query.parts.at(1)), 1), note};
  }
  std::tuple<torch::Tensor, int, torch::Tensor> forward(std::pair<torch::Tensor, torch::Tensor> x) {
    return {a->forward(x.first), 7, b->forward(x.second)};
  }
  std::vector<std::map<std::string, torch::Tensor>> forward(std::initializer_list<torch::Tensor> xs) {
    std::vector<std::map<std::string, torch::Tensor>> results;
    for (const auto& x : xs) results.push_back({{"a", a->forward(x)}, {"b", b->forward(x)}});
    return results;
  }
  void forward(const torch::Tensor& x, torch::Tensor* out) { *out = a->forward(x); }
  std::unique_ptr<torch::Tensor> forward(std::unique_ptr<torch::Tensor> x) {
    return std::make_unique<torch::Tensor>(b->forward(*x));
  }
  const torch::Tensor& forward() { return last = a->weight.sum() + b->weight.sum(); }
  torch::Tensor last;
};
TORCH_MODULE(AnyCall);

// Everything above, called through `call`, added up.
template <class Call>
torch::Tensor loss_of_all_calls(Call&& call, const Batch& batch) {
  auto x = samples(batch, {4}), y = samples({batch.step + 9, batch.first, batch.count}, {4});
  auto loss = call(x, y).mean() + call(x, y, 3, true).pow(2).mean();
  Prediction prediction = call(Query{{x, y}, 0.5}, "noted");
  EXPECT_EQ(prediction.note, "noted");
  loss = loss + (prediction.mean * prediction.spread).mean();
  auto [first, seven, second] = call(std::make_pair(x, y));
  EXPECT_EQ(seven, 7);
  loss = loss + (first * second).mean();
  for (auto& result : call(std::initializer_list<torch::Tensor>{x, y}))
    loss = loss + (result["a"] * result["b"]).mean();
  torch::Tensor out;
  call(x, &out);
  loss = loss + out.pow(3).mean();
  loss = loss + call(std::make_unique<torch::Tensor>(y))->cos().mean();
  const torch::Tensor& last = call();
  return loss + last * 0.1;
}

TEST(ZooCalls, AnyArgumentsAndResultsThroughTheHandleEqualTheUnshardedRun) {
  Program<AnyCallImpl> program;
  program.build = [] { return std::make_shared<AnyCallImpl>(); };
  program.shard = [](AnyCallImpl& net, const FullyShardOptions& options) { fully_shard(*net.a, options); };
  program.run = [](AnyCallImpl& net, const Role& role) {
    std::optional<Sharded<AnyCallImpl&>> model;
    if (role.is_sharded()) model.emplace(fully_shard(net));
    auto optimizer = sgd(net.parameters());
    Values losses;
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      auto plain = [&](auto&&... args) -> decltype(auto) { return net.forward(std::forward<decltype(args)>(args)...); };
      auto loss = model ? loss_of_all_calls(*model, role.batch(step)) : loss_of_all_calls(plain, role.batch(step));
      loss.backward();
      optimizer.step();
      losses.push_back(loss.detach());
    }
    return losses;
  };
  expect_equals_unsharded(program);
}

// One step of the model made by `shard`; returns the loss, which must not depend on how the model is held.
template <class Shard>
void expect_call_equals(const torch::Tensor& expected, const Shard& shard) {
  for (int world : worlds_up_to(2)) {
    std::vector<AnyCall> nets;
    for (int r = 0; r < world; ++r) {
      torch::manual_seed(5);
      nets.emplace_back();
    }
    run_thread_ranks(world, [&](int r) {
      auto& mine = nets[static_cast<size_t>(r)];
      auto model = shard(mine);
      auto x = samples({0, 0, 2}, {4}, torch::kFloat);
      auto output = model(x, x);
      expect_close(expected, output, 5e-6);
      output.sum().backward();
      EXPECT_EQ(model->parameters().size(), 4U);
      EXPECT_EQ(model.parameters().size(), 4U);
      for (const auto& parameter : model.parameters()) EXPECT_EQ(parameter.grad().sizes(), parameter.sizes());
    });
  }
}

TEST(ZooCalls, HoldersSharedPointersAndConcreteModulesGiveTheSameHandle) {
  torch::manual_seed(5);
  AnyCall net;
  auto x = samples({0, 0, 2}, {4}, torch::kFloat);
  auto expected = net->forward(x, x).detach();
  expect_call_equals(expected, [](AnyCall& m) { return fully_shard(m); });
  expect_call_equals(expected, [](AnyCall& m) { return fully_shard(m.ptr()); });
  expect_call_equals(expected, [](AnyCall& m) { return fully_shard(*m); });
  expect_call_equals(expected, [](AnyCall& m) { return fully_shard(nn::ModuleHolder<AnyCallImpl>(m.ptr())); });
}

TEST(ZooCalls, ForwardOfTheHandleIsTheSameAsCallingIt) {
  torch::manual_seed(5);
  AnyCall net;
  auto x = samples({0, 0, 2}, {4}, torch::kFloat);
  auto expected = net->forward(x, x).detach();
  for (int world : worlds_up_to(2)) {
    std::vector<AnyCall> nets;
    for (int r = 0; r < world; ++r) {
      torch::manual_seed(5);
      nets.emplace_back();
    }
    run_thread_ranks(world, [&](int r) {
      auto model = fully_shard(nets[static_cast<size_t>(r)]);
      expect_close(expected, model.forward(x, x), 5e-6);
      torch::Tensor out;
      model.forward(x, &out);
      EXPECT_TRUE(out.defined());
      static_assert(std::is_same_v<decltype(model.forward()), const torch::Tensor&>);
    });
  }
}

// What a training function does that gets only the module, as LibTorch's example of MNIST.
template <class Net>
void train_with_the_module_only(Net& net, torch::optim::Optimizer& optimizer, const torch::Tensor& x) {
  auto model = handle_of(net);
  net.train();
  optimizer.zero_grad();
  model.forward(x, x).sum().backward();
  optimizer.step();
}

TEST(ZooCalls, AHandleOfAModuleThatIsShardedAlreadyCanBeCalled) {
  std::vector<AnyCall> nets;
  for (int r = 0; r < 2; ++r) {
    torch::manual_seed(5);
    nets.emplace_back();
  }
  run_thread_ranks(2, [&](int r) {
    auto& net = *nets[static_cast<size_t>(r)];
    fully_shard(*net.a);
    auto model = fully_shard(net);
    auto optimizer = sgd(net.parameters());
    auto x = samples({0, 0, 2}, {4}, torch::kFloat);
    auto before = full_tensor(net.a->weight);
    train_with_the_module_only(net, optimizer, x);
    EXPECT_FALSE(torch::equal(before, full_tensor(net.a->weight)));
    EXPECT_EQ(param_groups(handle_of(net)), param_groups(model));
    EXPECT_THROW(handle_of(*net.b), UsageError);
  });
}

TEST(ZooCalls, AScopeThatWasClosedIsOverBeforeItsGuardGoes) {
  std::vector<AnyCall> nets;
  for (int r = 0; r < 2; ++r) {
    torch::manual_seed(5);
    nets.emplace_back();
  }
  run_thread_ranks(2, [&](int r) {
    auto& net = nets[static_cast<size_t>(r)];
    auto model = fully_shard(net);
    auto optimizer = sgd(net->parameters());
    auto x = samples({0, 0, 2}, {4}, torch::kFloat);
    ForwardScope scope(model);
    auto loss = net->forward(x, x).sum();
    EXPECT_EQ(net->a->weight.size(0), 3);
    scope.close();
    EXPECT_EQ(net->a->weight.size(0), local_rows(net->a->weight).count);
    loss.backward();
    EXPECT_NO_THROW(optimizer.step());
    scope.close();
    ForwardScope again(model);
    EXPECT_EQ(net->forward(x, x).size(0), 2);
  });
}

TEST(ZooCalls, HandlesAreCheapAndShared) {
  AnyCall net;
  run_thread_ranks(1, [&](int) {
    auto model = fully_shard(net);
    Sharded<AnyCall> copy = model;
    Group group = copy;
    EXPECT_EQ(model.module().ptr(), net.ptr());
    copy(torch::ones({2, 4}), torch::ones({2, 4})).sum().backward();
    EXPECT_EQ(group.stats().gathers, model.stats().gathers);
    EXPECT_EQ(param_groups(group_of(*net)), param_groups(model));
    EXPECT_THROW(group_of(*net->a), UsageError);
  });
}

}  // namespace
}  // namespace fsdp::test
