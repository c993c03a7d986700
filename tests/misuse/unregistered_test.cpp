// Tensors that train although no module registered them: each rank would train its own, so a warning names them.

#include "misuse/net.h"
#include "misuse/warnings.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

constexpr const char* kTold = "no fully_shard call knows";

Tensor learnable(torch::IntArrayRef sizes) { return torch::full(sizes, 0.5).requires_grad_(); }
Tensor own_input() { return torch::full({3, 4}, 1.0 + rank()); }

/// A linear layer that is sharded, and an optimizer of it.
struct Sharded4 {
  nn::Linear layer = linear_alike();
  Sharded<nn::Linear> model = fully_shard(layer);
  torch::optim::SGD optimizer{layer->parameters(), torch::optim::SGDOptions(0.1)};

  /// What LibTorch warns of in a step, whose loss is `loss` of what the layer makes of `input`.
  std::string step(const Tensor& input, const std::function<Tensor(const Tensor&)>& loss) {
    const Warnings warnings;
    optimizer.zero_grad();
    loss(model(input)).backward();
    optimizer.step();
    return warnings.text;
  }
};

int count_of(const std::string& words, const std::string& text) {
  int count = 0;
  for (auto at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++count;
  return count;
}

// Layers in a std::vector are reached by the model's backward, the temperature has a backward of its own.
TEST(UnregisteredTensors, ThatTrainAreNamedOnceWithTheirSizes) {
  run_thread_ranks(2, [](int) {
    Sharded4 on;
    std::vector<nn::Linear> layers{nn::Linear(4, 5), nn::Linear(5, 2)};
    const auto temperature = learnable({});
    torch::optim::SGD sgd(layers[0]->parameters(), 0.1);
    torch::optim::Adam adam({layers[1]->weight, layers[1]->bias, temperature}, torch::optim::AdamOptions(0.1));
    std::string text;
    for (int step = 0; step < 5; ++step) {
      sgd.zero_grad();
      adam.zero_grad();
      text += on.step(own_input(), [&](const Tensor& h) { return layers[1](layers[0](h)).pow(2).sum(); });
      const Warnings warnings;
      (temperature.exp() * 3).backward();
      text += warnings.text;
      sgd.step();
      adam.step();
      if (step == 0) {
        EXPECT_EQ(text, "") << "it may be an input";
      }
    }
    EXPECT_THAT(text, says({"@backward: tensors of sizes ", "[5, 4]", "[5]", "[2, 5]", "[2]", "train, and no",
                            "@backward: a tensor of sizes [] trains, and no", "torch::nn::ModuleList",
                            "fsdp::all_reduce_", "FullyShardOptions::ignored_params"}));
    EXPECT_EQ(count_of(kTold, text), 2) << text;
  });
}

// Nothing writes the rows of a frozen model.
TEST(UnregisteredTensors, ThatTrainBesideAFrozenModelAreNamedToo) {
  run_thread_ranks(2, [](int) {
    auto layer = linear_alike();
    for (auto& parameter : layer->parameters()) parameter.requires_grad_(false);
    auto model = fully_shard(layer);
    const auto prompt = learnable({1, 4});
    torch::optim::SGD sgd({prompt}, 1e-3);
    const Warnings warnings;
    for (int step = 0; step < 250; ++step) {
      sgd.zero_grad();
      model(own_input() + prompt).sum().backward();
      sgd.step();
    }
    EXPECT_EQ(count_of("a tensor of sizes [1, 4] trains", warnings.text), 1) << warnings.text;
  });
}

TEST(UnregisteredTensors, ThatAreInputsAreNoMistake) {
  run_thread_ranks(2, [](int) {
    const auto sum = [](const Tensor& h) { return h.pow(2).sum(); };
    Sharded4 on;
    const auto points = own_input().requires_grad_();  // kept for ever, and never written
    std::string text;
    for (int step = 0; step < 6; ++step) {
      const auto attacked = own_input().requires_grad_();
      for (int i = 0; i < 10; ++i) {
        on.model(attacked).sum().backward();
        const torch::NoGradGuard no_grad;
        Tensor(attacked).add_(attacked.grad().sign(), 0.01);
      }
      text += on.step(attacked, sum);
      text += on.step(points, [&](const Tensor& h) {
        return torch::autograd::grad({h.sum()}, {points}, {}, true, true)[0].pow(2).sum() + h.sum();
      });
    }
    const auto image = learnable({3, 4});  // written often, while the model stays as it is
    for (int i = 0; i < 60; ++i) {
      const Warnings warnings;
      on.model(image).sum().backward();
      const torch::NoGradGuard no_grad;
      Tensor(image).add_(image.grad(), 0.01);
      text += warnings.text;
    }
    EXPECT_EQ(text, "");
  });
}

TEST(UnregisteredTensors, ThatAreIgnoredOrSummedByHandAreNoMistake) {
  for (bool in_place : {true, false})
    run_thread_ranks(2, [&](int) {
      auto module = build_alike([] { return nn::Sequential(nn::Linear(4, 4), nn::Linear(4, 4)); });
      const auto own = module[1]->as<nn::Linear>()->weight;
      auto model = fully_shard(module, {.ignored_params = {own}});
      const auto summed = learnable({4});
      torch::optim::SGD sgd({module[0]->as<nn::Linear>()->weight, own, summed}, 0.1);
      const Warnings warnings;
      for (int step = 0; step < 6; ++step) {
        sgd.zero_grad();
        (model(own_input()) * summed).sum().backward();
        if (in_place)
          all_reduce_(summed.grad());
        else
          Tensor(summed).mutable_grad() = all_reduce(summed.grad());
        sgd.step();
      }
      EXPECT_EQ(warnings.text, "");
      EXPECT_TRUE(torch::equal(all_reduce(summed.detach(), ReduceOp::kMax), summed));
    });
}

}  // namespace
}  // namespace fsdp::test
