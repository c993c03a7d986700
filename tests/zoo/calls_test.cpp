// Tests of calls through the handle with various arguments and results, and of the holders that fully_shard accepts.

#include <map>

#include "api/group_view.h"
#include "zoo/zoo.h"

namespace fsdp::test {
namespace {

struct Prediction {
  Tensor mean, spread;
  std::string note;
};

struct Query {
  Values parts;
  double scale = 1.0;
};

struct AnyCallImpl : nn::Module {
  nn::Linear a = register_module("a", nn::Linear(4, 3)), b = register_module("b", nn::Linear(4, 3));
  Tensor forward(const Tensor& x, const Tensor& y, int64_t repeats = 1, bool swap = false) {
    auto sum = swap ? b->forward(x) + a->forward(y) : a->forward(x) + b->forward(y);
    return sum * static_cast<double>(repeats);
  }
  Prediction forward(const Query& query, const std::string& note) {
    return {a->forward(query.parts.at(0)) * query.scale, torch::softmax(b->forward(query.parts.at(1)), 1), note};
  }
  std::tuple<Tensor, int, Tensor> forward(std::pair<Tensor, Tensor> x) {
    return {a->forward(x.first), 7, b->forward(x.second)};
  }
  std::vector<std::map<std::string, Tensor>> forward(std::initializer_list<Tensor> xs) {
    std::vector<std::map<std::string, Tensor>> results;
    for (const auto& x : xs) results.push_back({{"a", a->forward(x)}, {"b", b->forward(x)}});
    return results;
  }
  void forward(const Tensor& x, Tensor* out) { *out = a->forward(x); }
  std::unique_ptr<Tensor> forward(std::unique_ptr<Tensor> x) { return std::make_unique<Tensor>(b->forward(*x)); }
  const Tensor& forward() { return last = a->weight.sum() + b->weight.sum(); }
  Tensor last;
};
TORCH_MODULE(AnyCall);

// Makes all the calls above through `call`, and returns the sum of their losses.
template <class Call>
Tensor loss_of_all_calls(Call&& call, const Batch& batch) {
  auto x = samples(batch, {4}), y = samples({batch.step + 9, batch.first, batch.count}, {4});
  auto loss = call(x, y).mean() + call(x, y, 3, true).pow(2).mean();
  Prediction prediction = call(Query{{x, y}, 0.5}, "noted");
  EXPECT_EQ(prediction.note, "noted");
  loss = loss + (prediction.mean * prediction.spread).mean();
  auto [first, seven, second] = call(std::make_pair(x, y));
  EXPECT_EQ(seven, 7);
  loss = loss + (first * second).mean();
  for (auto& result : call(std::initializer_list<Tensor>{x, y})) loss = loss + (result["a"] * result["b"]).mean();
  Tensor out;
  call(x, &out);
  loss = loss + out.pow(3).mean();
  loss = loss + call(std::make_unique<Tensor>(y))->cos().mean();
  const Tensor& last = call();
  return loss + last * 0.1;
}

TEST(ZooCalls, AnyArgumentsAndResultsThroughTheHandleEqualTheUnshardedRun) {
  expect_same_sharded<AnyCallImpl>(
      [](AnyCallImpl& net, const Role& role) {
        std::optional<Sharded<AnyCallImpl&>> model;
        if (role.is_sharded()) model.emplace(fully_shard(net));
        const auto plain = [&](auto&&... args) -> decltype(auto) {
          return net.forward(std::forward<decltype(args)>(args)...);
        };
        return descend(net.parameters(), [&](int step) {
          return backward_of(model ? loss_of_all_calls(*model, role.batch(step))
                                   : loss_of_all_calls(plain, role.batch(step)));
        });
      },
      [](nn::Module& net, const FullyShardOptions& options) {
        fully_shard(*dynamic_cast<AnyCallImpl&>(net).a, options);
      });
}

AnyCall any_call() {
  return build_alike([] { return AnyCall(); });
}

Tensor two_samples() { return samples({0, 0, 2}, {4}, torch::kFloat); }

// Shards with `shard`. The result of one step must not depend on how the model is held.
template <class ShardCall>
void expect_call_of_handle(const ShardCall& shard) {
  const auto x = two_samples();
  const auto expected = any_call()->forward(x, x).detach();
  run_thread_ranks(2, [&](int) {
    auto net = any_call();
    auto model = shard(net);
    auto output = model(x, x);
    expect_close(expected, output, 5e-6);
    output.sum().backward();
    EXPECT_EQ(model->parameters().size(), 4U);
    EXPECT_EQ(model.parameters().size(), 4U);
    for (const auto& parameter : model.parameters()) EXPECT_EQ(parameter.grad().sizes(), parameter.sizes());
    expect_close(expected, model.forward(x, x), 5e-6);
    Tensor out;
    model.forward(x, &out);
    EXPECT_TRUE(out.defined());
    static_assert(std::is_same_v<decltype(model.forward()), const Tensor&>);
  });
}

TEST(ZooCalls, HoldersSharedPointersAndConcreteModulesGiveTheSameHandleAndForwardIsTheSameAsCallingIt) {
  expect_call_of_handle([](AnyCall& m) { return fully_shard(m); });
  expect_call_of_handle([](AnyCall& m) { return fully_shard(m.ptr()); });
  expect_call_of_handle([](AnyCall& m) { return fully_shard(*m); });
}

TEST(ZooCalls, AHandleOfAModuleThatIsShardedAlreadyCanBeCalled) {
  run_thread_ranks(2, [](int) {
    auto holder = any_call();
    auto& net = *holder;
    fully_shard(*net.a);
    auto model = fully_shard(net);
    auto optimizer = sgd(net.parameters());
    auto before = full_tensor(net.a->weight);
    // A training function that gets only the module does the same, as in LibTorch's MNIST example.
    net.train();
    handle_of(net).forward(two_samples(), two_samples()).sum().backward();
    optimizer.step();
    EXPECT_FALSE(torch::equal(before, full_tensor(net.a->weight)));
    for (const Group& group : {Group(model), Group(handle_of(net)), group_of(net)})
      EXPECT_EQ(param_groups(group), param_groups(model));
    EXPECT_EQ(&model.module(), &net);
    EXPECT_THROW(static_cast<void>(handle_of(*net.b)), UsageError);
  });
}

TEST(ZooCalls, AScopeThatWasClosedIsOverBeforeItsGuardGoes) {
  run_thread_ranks(2, [](int) {
    auto net = any_call();
    auto model = fully_shard(net);
    auto optimizer = sgd(net->parameters());
    ForwardScope scope(model);
    auto loss = net->forward(two_samples(), two_samples()).sum();
    EXPECT_EQ(net->a->weight.size(0), 3);
    scope.close();
    EXPECT_EQ(net->a->weight.size(0), local_rows(net->a->weight).count);
    loss.backward();
    EXPECT_NO_THROW(optimizer.step());
    scope.close();
    ForwardScope again(model);
    EXPECT_EQ(net->forward(two_samples(), two_samples()).size(0), 2);
  });
}

}  // namespace
}  // namespace fsdp::test
