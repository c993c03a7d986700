// Tests of clones of a sharded model: moving averages, and models that take turns.

#include <c10/util/Exception.h>
#include <fsdp/set_strategy.h>
#include <fsdp/to.h>

#include "state/trainee.h"

namespace fsdp::test {
namespace {

struct NormedNetImpl : torch::nn::Module {
  torch::nn::Linear in{5, 7}, out{7, 3};
  torch::nn::BatchNorm1d norm{7};
  NormedNetImpl() {
    register_module("in", in);
    register_module("norm", norm);
    register_module("out", out);
    register_parameter("again", out->weight);
  }
  Tensor forward(const Tensor& x) { return out(torch::relu(norm(in(x)))); }
};
TORCH_MODULE(NormedNet);

constexpr double kDecay = 0.75;

NormedNet make_net() {
  return build_alike([] { return NormedNet(); });
}

void train_step(auto& model, torch::optim::Optimizer& optimizer, int step) {
  optimizer.zero_grad();
  model(samples({step, 0, 6}, {5}, torch::kFloat)).square().mean().backward();
  optimizer.step();
}

// Trains a model, and averages its whole values as a program without fsdp would.
struct Averaged {
  NormedNet net = make_net();
  Sharded<NormedNet> model = fully_shard(net);
  torch::optim::SGD optimizer{net->parameters(), torch::optim::SGDOptions(0.1)};
  Clone average = clone(model);
  std::vector<Tensor> expected = whole_values(*net);

  void train(int steps) {
    const auto parameters = net->parameters().size();
    for (int step = 0; step < steps; ++step) {
      train_step(model, optimizer, step);
      average.update(kDecay);
      const auto now = whole_values(*net);
      for (size_t i = 0; i < now.size(); ++i)
        i < parameters ? expected[i].mul_(kDecay).add_(now[i], 1 - kDecay) : expected[i].copy_(now[i]);
    }
  }
};

TEST(Clone, AveragesAndTakesTurnsWithTheModel) {
  for (const int world : {1, 3})
    run_thread_ranks(world, [&](int) {
      Averaged trained;
      trained.train(2);
      const auto before = whole_values(*trained.net);
      {
        const auto use = trained.average.use();
        expect_same_values(trained.expected, whole_values(*trained.net));
        const torch::NoGradGuard no_grad;
        trained.net->eval();
        auto alone = make_net();
        alone->eval();
        for (size_t i = 0; i < alone->parameters().size(); ++i) alone->parameters()[i].copy_(trained.expected[i]);
        for (size_t i = 0; i < alone->buffers().size(); ++i)
          alone->buffers()[i].copy_(trained.expected[alone->parameters().size() + i]);
        const auto batch = samples({0, 0, 4}, {5}, torch::kFloat);
        EXPECT_TRUE(torch::equal(alone(batch), trained.model(batch)));
        trained.net->train();
      }
      expect_same_values(before, whole_values(*trained.net));
      trained.train(1);
      const auto use = trained.average.use();
      expect_same_values(trained.expected, whole_values(*trained.net));
    });
}

TEST(Clone, IsSavedAndLoadedAsTheModelsValuesAtAnotherWorldSize) {
  const TemporaryFolder folder;
  const auto path = folder / "average";
  std::vector<Tensor> expected;
  run_thread_ranks(2, [&](int r) {
    Averaged trained;
    trained.train(2);
    {
      const auto use = trained.average.use();
      save_checkpoint(path, trained.model);
    }
    if (r == 0) expected = trained.expected;
  });
  run_thread_ranks(3, [&](int) {
    auto net = make_net();
    const auto model = fully_shard(net);
    const auto before = whole_values(*net);
    auto average = clone(model);
    {
      const auto use = average.use();
      load_checkpoint(path, model);
    }
    expect_same_values(before, whole_values(*net));
    const auto use = average.use();
    expect_same_values(expected, whole_values(*net));
  });
}

class WarningTexts : public c10::WarningHandler {
 public:
  std::string text;
  void process(const c10::Warning& warning) override { text += warning.msg(); }
};

TEST(Clone, OfAModelThatMovedMeanwhileOrIsInAScopeIsRefusedAndTheModelKeepsItsValues) {
  for (const bool converts : {true, false})
    run_thread_ranks(2, [&](int) {
      Averaged trained;
      auto& model = trained.model;
      auto& average = trained.average;
      in_scope(model, [&] {
        EXPECT_THAT(error_of([&] { average.update(0.5); }), HasSubstr("between steps"));
        EXPECT_THAT(error_of([&] { return clone(model); }), HasSubstr("between steps"));
      });
      EXPECT_THAT(error_of([&] { average.update(1.5); }), HasSubstr("from 0 to 1"));
      trained.train(2);
      trained.optimizer.zero_grad();
      std::map<std::string, Tensor> own;  // values of the model itself
      for (const auto& entry : state_dict(model)) own[entry.name] = plain_copy(entry.rows);
      WarningTexts warnings;
      {
        const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
        const auto use = average.use();
        if (converts)
          to(model, torch::kDouble);
        else
          set_strategy(model, trained.optimizer, Strategy::kReplicate);
      }
      EXPECT_THAT(warnings.text, AllOf(HasSubstr("The model keeps the clone's values, and the clone has the model's"),
                                       HasSubstr("Clone the model again")));
      EXPECT_THAT(error_of([&] { average.update(0.5); }), HasSubstr("Clone the model again"));
      const auto found = whole_values(*trained.net);
      for (size_t i = 0; i < found.size(); ++i)
        EXPECT_TRUE(torch::equal(found[i], trained.expected[i].to(found[i].scalar_type()))) << i;
      for (const auto& [name, values] : average.values())
        EXPECT_TRUE(torch::equal(plain_copy(values), own.at(name))) << name;
    });
}

}  // namespace
}  // namespace fsdp::test
