// Tests of the code that docs/refused.md shows as a replacement for what is refused. The code here is the same, word by
// word.

#include <ATen/CPUGeneratorImpl.h>

#include "misuse/net.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

/// A layer that computes with its weight divided by the weight's norm.
struct NormalisedImpl : nn::Module {
  explicit NormalisedImpl(bool by_member = false) : assigns_member(by_member) { register_module("layer", layer); }
  Tensor forward(const Tensor& x) { return assigns_member ? by_member(x) : by_function(x); }

  Tensor by_function(const Tensor& x) {
    const auto sigma = layer->weight.norm();
    return torch::linear(x, layer->weight / sigma, layer->bias);
  }
  Tensor by_member(const Tensor& x) {
    const auto weight = layer->weight;
    layer->weight = weight / weight.norm();
    const auto y = layer(x);
    layer->weight = weight;
    return y;
  }

  nn::Linear layer{4, 3};
  const bool assigns_member;
};

TEST(Instead, OfSetDataAForwardDividesTheWeightOrAssignsTheMember) {
  for (bool by_member : {false, true}) {
    Training<NormalisedImpl> training;
    training.build = [=] { return std::make_shared<NormalisedImpl>(by_member); };
    training.shard = [](NormalisedImpl& net) { return fully_shard(static_cast<nn::Module&>(net)); };
    training.loss = [](NormalisedImpl& net, const Batch& batch) {
      return torch::mse_loss(net.forward(samples(batch, {4})), samples(batch, {3}));
    };
    for (int world : worlds_up_to(3)) expect_training_equals_unsharded(training, world);
  }
}

struct WordsImpl : nn::Module {
  explicit WordsImpl(const nn::EmbeddingOptions& options) : table(register_module("table", nn::Embedding(options))) {}
  nn::Embedding table;
};

Tensor loss_of_words(WordsImpl& net, const Batch& batch) {
  return torch::mse_loss(net.table->forward(labels(batch, {3}, 9)), samples(batch, {3, 4}));
}

TEST(Instead, OfMaxNormTheRowsOfATableAreNormalisedBetweenSteps) {
  constexpr int kWorld = 2;
  Training<WordsImpl> training;
  training.optimizer = [](auto parameters) { return std::make_unique<torch::optim::SGD>(parameters, 0.5); };
  training.loss = loss_of_words;
  training.build = [] { return std::make_shared<WordsImpl>(nn::EmbeddingOptions(9, 4).max_norm(1.0)); };
  const auto expected = train_unsharded(training, kWorld);
  training.build = [] { return std::make_shared<WordsImpl>(nn::EmbeddingOptions(9, 4)); };
  run_with_models(
      kWorld, [&] { return build_model(training); },
      [&](WordsImpl& net, int) {
        const auto model = fully_shard(net);
        const auto optimizer = training.optimizer(net.parameters());
        const auto& table = net.table;
        const auto normalise = [&] {
          const fsdp::LocalRows rows(model);
          const torch::NoGradGuard no_grad;
          table->weight.copy_(torch::renorm(table->weight, /*p=*/2, /*dim=*/0, /*maxnorm=*/1.0));
        };
        for (int step = 0; step < training.steps; ++step) {
          normalise();
          optimizer->zero_grad();
          const auto loss = in_scope(model, [&] { return loss_of_words(net, {step, rank() * 2, 2}); });
          loss.backward();
          optimizer->step();
          EXPECT_NEAR(mean(loss.item<double>()), expected.losses[static_cast<size_t>(step)], 1e-10);
        }
        normalise();
        EXPECT_LT(relative_difference(torch::renorm(expected.parameters[0], 2, 0, 1.0), full_tensor(table->weight)),
                  1e-6);
      });
}

/// Rounds a layer's outputs to the nearest of some codes. Each code moves towards the mean of the outputs that were
/// rounded to it.
struct QuantisedImpl : nn::Module {
  nn::Linear layer = register_module("layer", nn::Linear(4, 3));
  Tensor codes = register_buffer("codes", torch::linspace(-1, 1, 15).view({5, 3}));
  std::function<Tensor(const Tensor&)> over_ranks = [](const Tensor& sum) { return sum; };

  Tensor forward(const Tensor& x) {
    const auto h = layer(x);
    const auto nearest = torch::one_hot(torch::cdist(h.detach(), codes).argmin(1), codes.size(0)).to(h.scalar_type());
    const auto count = over_ranks(nearest.sum(0)), sum = over_ranks(nearest.t().mm(h.detach()));
    const auto rounded = h + (nearest.mm(codes) - h).detach();
    codes.lerp_(torch::where(count.unsqueeze(1) > 0, sum / count.clamp_min(1).unsqueeze(1), codes), 0.1);
    return rounded;
  }
};

TEST(Instead, OfAParameterThatForwardWritesThereIsABufferWithTheSumsOfAllRanks) {
  Training<QuantisedImpl> training;
  training.build = [] { return std::make_shared<QuantisedImpl>(); };
  training.shard = [](QuantisedImpl& net) {
    net.over_ranks = [](const Tensor& sum) { return fsdp::all_reduce(sum); };
    return fully_shard(static_cast<nn::Module&>(net));
  };
  training.loss = [](QuantisedImpl& net, const Batch& batch) {
    return torch::mse_loss(net.forward(samples(batch, {4})), samples(batch, {3}));
  };
  for (int world : worlds_up_to(3)) expect_training_equals_unsharded(training, world);
}

TEST(Instead, OfRowsByTheirNumbersRandomNumbersAndWritesFromRowsWholeValuesAreUsed) {
  run_thread_ranks(2, [](int) {
    auto net = linear_alike(4, 5);
    const auto before = net->weight.detach().clone();
    fully_shard(*net);
    const auto p = net->weight;
    auto generator = torch::make_generator<at::CPUGeneratorImpl>(3);  // the same numbers on every rank
    const auto seeded = [&] { return generator.clone(); };
    const torch::NoGradGuard no_grad;

    p.add_(torch::randn(fsdp::global_sizes(p), seeded()) * 0.1);
    auto expected = before + torch::randn({5, 4}, seeded()) * 0.1;
    EXPECT_TRUE(torch::equal(fsdp::full_tensor(p), expected));

    auto whole = fsdp::full_tensor(p);
    whole[0].zero_();
    p.copy_(whole);
    expected[0].zero_();
    EXPECT_TRUE(torch::equal(fsdp::full_tensor(p), expected));

    auto target = before.clone();
    target.lerp_(fsdp::full_tensor(p), 0.1);
    EXPECT_TRUE(torch::equal(target, before.lerp(expected, 0.1)));
  });
}

}  // namespace
}  // namespace fsdp::test
