// Tests of the examples' models: parts of Llama against plain formulas, and sharded training against the unsharded
// oracle.

#include "models/convnet.h"
#include "models/gpt.h"
#include "models/llama.h"
#include "support/oracle.h"

namespace fsdp::test {
namespace {

constexpr models::LlamaConfig kLlama{.vocab = 53, .seq = 10, .dim = 24, .layers = 2, .heads = 3};

TEST(RMSNorm, DividesByTheRootOfTheMeanSquare) {
  torch::manual_seed(1);
  models::RMSNorm norm(6, 1e-3);
  torch::NoGradGuard no_grad;
  norm->weight.uniform_();
  const auto x = torch::randn({2, 3, 6});
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t j = 0; j < 3; ++j) {
      double squares = 0;
      for (int64_t k = 0; k < 6; ++k) squares += std::pow(x[i][j][k].item<double>(), 2);
      for (int64_t k = 0; k < 6; ++k) {
        const double expected =
            x[i][j][k].item<double>() / std::sqrt(squares / 6 + 1e-3) * norm->weight[k].item<double>();
        EXPECT_NEAR(norm(x)[i][j][k].item<double>(), expected, 1e-6);
      }
    }
  }
}

TEST(Rotary, TurnsEachPairByItsPositionsAngle) {
  torch::manual_seed(2);
  constexpr int64_t kPositions = 5, kWidth = 6;
  const auto x = torch::randn({2, kPositions, kWidth});
  const auto turned = models::rotate(x, models::rotations(kPositions, kWidth, 100));
  for (int64_t position = 0; position < kPositions; ++position) {
    for (int64_t pair = 0; pair < kWidth / 2; ++pair) {
      const double angle = static_cast<double>(position) / std::pow(100, 2.0 * static_cast<double>(pair) / kWidth);
      const double a = x[1][position][2 * pair].item<double>(), b = x[1][position][2 * pair + 1].item<double>();
      EXPECT_NEAR(turned[1][position][2 * pair].item<double>(), a * std::cos(angle) - b * std::sin(angle), 1e-6);
      EXPECT_NEAR(turned[1][position][2 * pair + 1].item<double>(), a * std::sin(angle) + b * std::cos(angle), 1e-6);
    }
  }
}

TEST(Rotary, LeavesScoresThatDependOnDistancesOnly) {
  torch::manual_seed(3);
  const auto query = torch::randn({8}), key = torch::randn({8});
  const auto by = models::rotations(12, 8);
  const auto queries = models::rotate(query.expand({12, 8}), by), keys = models::rotate(key.expand({12, 8}), by);
  const auto score = [&](int64_t i, int64_t j) { return queries[i].dot(keys[j]).item<double>(); };
  EXPECT_NEAR(score(5, 2), score(11, 8), 1e-5);
  EXPECT_GT(std::abs(score(5, 2) - score(5, 4)), 1e-3);
  EXPECT_THROW(models::rotations(4, 7), c10::ValueError);
}

TEST(SwiGLU, IsTheGatedNetworksFormula) {
  torch::manual_seed(4);
  models::SwiGLU net(3, 4);
  const auto x = torch::randn({2, 3});
  const auto gate = torch::matmul(x, net->gate->weight.t()), up = torch::matmul(x, net->up->weight.t());
  const auto expected = torch::matmul(gate / (1 + torch::exp(-gate)) * up, net->down->weight.t());
  EXPECT_TRUE(torch::allclose(net(x), expected, 1e-5, 1e-6));
}

TEST(Llama, SeesNoTokenThatComesLater) {
  torch::manual_seed(5);
  models::Llama llama(kLlama);
  torch::NoGradGuard no_grad;
  const auto ids = torch::randint(kLlama.vocab, {1, kLlama.seq}, torch::kInt64);
  auto other = ids.clone();
  other[0][6] = (other[0][6] + 1) % kLlama.vocab;
  const auto difference = (llama(ids) - llama(other)).abs().amax({0, 2});
  EXPECT_LT(difference.narrow(0, 0, 6).max().item<double>(), 1e-6);
  EXPECT_GT(difference[6].item<double>(), 1e-3);
  EXPECT_TRUE(torch::allclose(llama(ids.narrow(1, 0, 4)), llama(ids).narrow(1, 0, 4), 1e-5, 1e-6));
}

TEST(Llama, RefusesAWidthThatItsHeadsDoNotShare) {
  EXPECT_THROW(models::LlamaImpl(models::LlamaConfig{.vocab = 5, .seq = 4, .dim = 10, .layers = 1, .heads = 3}),
               c10::ValueError);
  EXPECT_THROW(models::LlamaImpl(models::LlamaConfig{.vocab = 5, .seq = 4, .dim = 9, .layers = 1, .heads = 3}),
               c10::ValueError);
}

// Returns a training that learns to predict the next token.
template <class Net, class Config>
Training<Net> language_training(const Config& config, int steps) {
  Training<Net> training;
  training.steps = steps;
  training.build = [=] { return std::make_shared<Net>(config); };
  training.loss = [=](Net& net, const Batch& batch) {
    const auto tokens = labels(batch, {config.seq + 1}, config.vocab);
    return net.forward(tokens.narrow(1, 0, config.seq), tokens.narrow(1, 1, config.seq));
  };
  return training;
}

TEST(LlamaTraining, EqualsTheUnshardedRun) {
  auto training = language_training<models::LlamaImpl>(kLlama, 6);
  training.shard = [](models::LlamaImpl& net) {
    return fully_shard(static_cast<torch::nn::Module&>(net),
                       {.auto_wrap_policy = module_wrap_policy<models::LlamaBlockImpl>()});
  };
  expect_training_equals_unsharded(training, worlds_up_to(4).back());
}

TEST(GptTraining, TenStepsEqualTheUnshardedRun) {
  constexpr models::GPTConfig kGpt{.vocab = 97, .seq = 12, .dim = 24, .layers = 3, .heads = 3};
  auto training = language_training<models::GPTImpl>(kGpt, 10);
  training.shard = [](models::GPTImpl& net) {
    for (auto& block : *net.blocks) fully_shard(*block);
    return fully_shard(static_cast<torch::nn::Module&>(net));
  };
  expect_training_equals_unsharded(training, worlds_up_to(4).back());
  in_float32(training);  // within its rounding
  expect_training_equals_unsharded(training, 2);
}

// The training is in double precision. With a learning rate of 1, a difference in the last digit grows tenfold every
// few steps, so results in float could not be compared.
TEST(ConvNetTraining, SixtyStepsOfAdadeltaEqualTheUnshardedRun) {
  Training<models::ConvNet> training;
  training.steps = 60;
  training.samples_per_rank = 1;
  training.build = [] { return std::make_shared<models::ConvNet>(/*drops_out=*/false); };
  training.shard = [](models::ConvNet& net) {
    fully_shard(*net.fc1);
    return fully_shard(static_cast<torch::nn::Module&>(net));
  };
  training.loss = [](models::ConvNet& net, const Batch& batch) {
    return torch::nll_loss(net.forward(samples(batch, {1, 28, 28})), labels(batch, {}, 10));
  };
  training.optimizer = [](auto parameters) { return std::make_unique<optim::Adadelta>(parameters); };
  training.tolerance = 1e-9;
  expect_training_equals_unsharded(training, 2);
}

}  // namespace
}  // namespace fsdp::test
