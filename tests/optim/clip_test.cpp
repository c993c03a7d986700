// The norm of the gradients has the same bits wherever rows are cut.

#include <cmath>
#include <map>

#include "support/oracle.h"

namespace fsdp::test {
namespace {

// Matrices of many short and of few long rows, a long vector, a channels_last kernel, a scalar.
struct Shapes : torch::nn::Module {
  Shapes() {
    const std::vector<std::vector<int64_t>> sizes{{1009, 3}, {7, 331}, {1500}, {5, 1}, {6, 4, 3, 3}, {}};
    for (const auto& size : sizes) {
      auto parameter = torch::zeros(size);
      if (size.size() == 4) parameter = parameter.contiguous(torch::MemoryFormat::ChannelsLast);
      register_parameter("p" + std::to_string(parameters().size()), parameter);
    }
  }
};

// Over many orders of magnitude, so that the order of addition shows in the last bits.
torch::Tensor wild_gradient(const torch::Tensor& like, int index, c10::ScalarType dtype) {
  auto values = samples({index, 0, 1}, like.sizes().vec()).squeeze(0);
  auto magnitudes = samples({index + 50, 0, 1}, like.sizes().vec()).squeeze(0);
  return (values * torch::pow(10.0, 6 * magnitudes)).to(dtype);
}

struct Found {
  double norm;
  std::vector<torch::Tensor> clipped;
};

// Clips the gradients of one group. Collective.
Found clip(Shapes& shapes, double norm_type, c10::ScalarType dtype) {
  auto parameters = shapes.parameters();
  std::vector<torch::Tensor> gradients;
  for (const auto& parameter : parameters)
    gradients.push_back(wild_gradient(parameter.detach(), static_cast<int>(gradients.size()), dtype));
  auto group = fully_shard(static_cast<torch::nn::Module&>(shapes));
  for (size_t i = 0; i < parameters.size(); ++i) {
    auto rows = local_rows(parameters[i]);
    auto whole = gradients[i].dim() == 0 ? gradients[i].reshape({1}) : gradients[i];
    parameters[i].mutable_grad() = whole.narrow(0, rows.first, rows.count).clone();
  }
  Found found{clip_grad_norm_(group, 1.0, norm_type), {}};
  for (const auto& parameter : parameters) found.clipped.push_back(full_grad(parameter));
  return found;
}

class OptimClipping : public testing::TestWithParam<double> {};

TEST_P(OptimClipping, NormAndClippedGradientsHaveTheSameBitsInEveryWorld) {
  for (auto dtype : {torch::kFloat, torch::kDouble, torch::kBFloat16}) {
    std::optional<Found> expected;
    for (int world : worlds_up_to(8)) {
      std::vector<std::shared_ptr<Shapes>> shapes;
      for (int r = 0; r < world; ++r) {
        shapes.push_back(std::make_shared<Shapes>());
        shapes.back()->to(dtype);
      }
      std::vector<Found> found(static_cast<size_t>(world));
      run_thread_ranks(world, [&](int rank) {
        found[static_cast<size_t>(rank)] = clip(*shapes[static_cast<size_t>(rank)], GetParam(), dtype);
      });
      if (!expected) expected = found[0];
      for (const auto& [norm, clipped] : found) {
        EXPECT_EQ(norm, expected->norm) << "world " << world << ' ' << dtype;
        for (size_t i = 0; i < clipped.size(); ++i) EXPECT_TRUE(torch::equal(clipped[i], expected->clipped[i]));
      }
    }
  }
}

TEST_P(OptimClipping, NormIsTheSumInFp64) {
  auto shapes = std::make_shared<Shapes>();
  std::vector<torch::Tensor> all;
  for (const auto& parameter : shapes->parameters())
    all.push_back(wild_gradient(parameter.detach(), static_cast<int>(all.size()), torch::kFloat).flatten());
  const double p = GetParam();
  const double expected = torch::cat(all).to(torch::kDouble).norm(p).item<double>();
  run_thread_ranks(1, [&](int) { EXPECT_NEAR(clip(*shapes, p, torch::kFloat).norm, expected, 1e-13 * expected); });
}

INSTANTIATE_TEST_SUITE_P(Norms, OptimClipping, testing::Values(2.0, 1.0, 3.0, std::numeric_limits<double>::infinity()),
                         [](const auto& norm) {
                           return std::isinf(norm.param) ? std::string("Inf") : "L" + std::to_string(int(norm.param));
                         });

struct Tied : torch::nn::Module {
  torch::nn::Linear own{3, 3};
  torch::Tensor tied;
  explicit Tied(const torch::Tensor& weight) {
    register_module("own", own);
    tied = register_parameter("tied", weight);
  }
};

TEST(OptimClipping, CoversTheModelsOwnParametersOnlyWhereTheGroupOfATiedOneHasMore) {
  std::vector<torch::nn::Linear> encoders;
  std::vector<std::shared_ptr<Tied>> decoders;
  for (int r = 0; r < 2; ++r) {
    encoders.push_back(build_alike([] { return torch::nn::Linear(3, 3); }));
    decoders.push_back(build_alike([&] { return std::make_shared<Tied>(encoders.back()->weight); }));
  }
  run_thread_ranks(2, [&](int rank) {
    auto& encoder = encoders[static_cast<size_t>(rank)];
    auto& decoder = *decoders[static_cast<size_t>(rank)];
    fully_shard(encoder);
    const auto group = fully_shard(static_cast<torch::nn::Module&>(decoder));
    for (auto& parameter : encoder->parameters()) parameter.mutable_grad() = torch::ones_like(parameter.detach());
    for (auto& parameter : decoder.parameters()) parameter.mutable_grad() = torch::ones_like(parameter.detach());
    EXPECT_NEAR(clip_grad_norm_(group, 1.0), std::sqrt(9.0 + 3.0 + 9.0), 1e-6);
    if (encoder->bias.numel() > 0) {
      EXPECT_EQ(encoder->bias.grad().min().item<float>(), 1.0F) << "was scaled";
    }
    EXPECT_NEAR(clip_grad_norm_(group_of(*encoder), 100.0), std::sqrt(3.0 + 9.0 / 21.0), 1e-5);
  });
}

TEST(OptimClipping, ANanOrAnInfinityOnOneRankIsSeenByAll) {
  for (double norm_type : {2.0, 3.0, std::numeric_limits<double>::infinity()}) {
    for (double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
      std::vector<std::shared_ptr<Shapes>> shapes{std::make_shared<Shapes>(), std::make_shared<Shapes>()};
      run_thread_ranks(2, [&](int rank) {
        auto& mine = *shapes[static_cast<size_t>(rank)];
        auto group = fully_shard(static_cast<torch::nn::Module&>(mine));
        for (auto& parameter : mine.parameters())
          parameter.mutable_grad() = torch::full_like(parameter.detach(), rank == 1 ? bad : 1.0);
        const double norm = clip_grad_norm_(group, 1.0, norm_type);
        EXPECT_EQ(std::isnan(norm), std::isnan(bad)) << norm_type;
        EXPECT_FALSE(std::isfinite(norm)) << norm_type;
        // As torch::nn::utils::clip_grad_norm_ leaves them.
        if (rank == 1) return;
        for (auto& parameter : mine.parameters()) {
          const bool becomes_nan = std::isnan(bad) && parameter.numel() > 0;
          EXPECT_EQ(parameter.grad().isnan().any().item<bool>(), becomes_nan);
        }
      });
    }
  }
}

}  // namespace
}  // namespace fsdp::test
