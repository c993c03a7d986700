// A model in Llama's style: its parts against plain formulas, sharded training against the unsharded oracle.

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
  constexpr int64_t kPositions = 5, kDim = 6;
  const auto x = torch::randn({2, kPositions, kDim});
  const auto turned = models::rotate(x, models::rotations(kPositions, kDim, 100));
  for (int64_t position = 0; position < kPositions; ++position) {
    for (int64_t pair = 0; pair < kDim / 2; ++pair) {
      const double angle = static_cast<double>(position) / std::pow(100, 2.0 * static_cast<double>(pair) / kDim);
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

Training<models::LlamaImpl> llama_training() {
  Training<models::LlamaImpl> training;
  training.steps = 6;
  training.build = [] { return std::make_shared<models::LlamaImpl>(kLlama); };
  training.shard = [](models::LlamaImpl& net) {
    return fully_shard(static_cast<torch::nn::Module&>(net),
                       {.auto_wrap_policy = module_wrap_policy<models::LlamaBlockImpl>()});
  };
  training.loss = [](models::LlamaImpl& net, const Batch& batch) {
    const auto tokens = labels(batch, {kLlama.seq + 1}, kLlama.vocab);
    return net.forward(tokens.narrow(1, 0, kLlama.seq), tokens.narrow(1, 1, kLlama.seq));
  };
  return training;
}

TEST(LlamaTraining, EqualsTheUnshardedRun) {
  for (int world : worlds_up_to(4)) expect_training_equals_unsharded(llama_training(), world);
}

}  // namespace
}  // namespace fsdp::test
