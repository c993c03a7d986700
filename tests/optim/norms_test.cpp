// Tests that norms and sums over all rows of all ranks, and clipping, give the same bits however rows are split.

#include <cmath>

#include "misuse/net.h"

namespace fsdp::test {
namespace {

// Returns matrices of many short and of few long rows, a long vector, a channels_last kernel and a scalar. Their values
// span many orders of magnitude and both signs, so that the order of addition shows in the last bits.
std::vector<torch::Tensor> wild_values(c10::ScalarType dtype) {
  std::vector<torch::Tensor> all;
  for (const auto& size : std::vector<std::vector<int64_t>>{{1009, 3}, {7, 331}, {1500}, {5, 1}, {6, 4, 3, 3}, {}}) {
    const int index = static_cast<int>(all.size());
    auto values = samples({index, 0, 1}, size) * torch::pow(10.0, 6 * samples({index + 50, 0, 1}, size));
    all.push_back(values.squeeze(0).to(dtype));
  }
  return all;
}

// A module whose parameters have these values. After set_gradients() their gradients have them, too.
struct Wild : torch::nn::Module {
  explicit Wild(c10::ScalarType dtype = torch::kDouble) {
    for (const auto& values : wild_values(dtype)) {
      const auto format = values.dim() == 4 ? torch::MemoryFormat::ChannelsLast : torch::MemoryFormat::Contiguous;
      register_parameter("p" + std::to_string(parameters().size()), values.contiguous(format));
    }
  }
  Group shard() { return fully_shard(static_cast<torch::nn::Module&>(*this)); }
  void set_gradients() {
    for (const auto& parameter : parameters()) parameter.mutable_grad() = parameter.detach().clone();
  }
};

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Norms, clipped gradients, and the sum of the values.
struct Found {
  std::vector<double> numbers;
  std::vector<torch::Tensor> clipped;
};

Found norms_and_clipped(c10::ScalarType dtype) {
  Wild net(dtype);
  const auto group = net.shard();
  Found found;
  for (const double p : {1.0, 2.0, 3.0, kInfinity}) {
    net.set_gradients();
    const double norm = fsdp::norm(net.parameters(), p);
    EXPECT_EQ(clip_grad_norm_(group, 1.0, p), norm);
    found.numbers.push_back(norm);
    for (const auto& parameter : net.parameters()) found.clipped.push_back(full_grad(parameter));
  }
  const ForwardScope scope(group);  // a scope gives the same results
  found.numbers.push_back(fsdp::sum(net.parameters()));
  EXPECT_EQ(fsdp::norm(net.parameters()), found.numbers[1]);
  EXPECT_EQ(fsdp::norm(group), found.numbers[1]);
  EXPECT_EQ(fsdp::sum(group), found.numbers[4]);
  return found;
}

TEST(GlobalSums, AndClippedGradientsHaveTheSameBitsInEveryWorld) {
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kBFloat16}) {
    SCOPED_TRACE(dtype);
    std::vector<torch::Tensor> all;
    for (const auto& values : wild_values(dtype)) all.push_back(values.to(torch::kDouble).flatten());
    const auto joined = torch::cat(all);
    std::optional<Found> expected;
    for (const int world : worlds_up_to(8)) {
      std::vector<Found> found(static_cast<size_t>(world));
      run_thread_ranks(world, [&](int rank) { found[static_cast<size_t>(rank)] = norms_and_clipped(dtype); });
      if (!expected) expected = found[0];
      for (const auto& [numbers, clipped] : found) {
        EXPECT_EQ(numbers, expected->numbers) << "world " << world;
        for (size_t i = 0; i < clipped.size(); ++i) EXPECT_TRUE(torch::equal(clipped[i], expected->clipped[i]));
      }
    }
    // The whole values in fp64 must give the same numbers.
    const auto& numbers = expected->numbers;
    for (size_t i = 0; i < 3; ++i)
      EXPECT_NEAR(numbers[i], joined.norm(static_cast<double>(i + 1)).item<double>(), 1e-13 * numbers[i]);
    EXPECT_EQ(numbers[3], joined.abs().max().item<double>());
    EXPECT_NEAR(numbers[4], joined.sum().item<double>(), 1e-13 * numbers[0]);
  }
}

TEST(GlobalSums, OfGradientsAreThoseOfTheWholeOnes) {
  run_thread_ranks(3, [](int rank) {
    Wild net;
    const auto group = net.shard();
    {
      ForwardScope scope(group);
      auto loss = (net.parameters()[0] * (rank + 1)).sum() + net.parameters()[4].square().sum();
      loss.backward();
    }
    std::vector<torch::Tensor> gradients, whole;  // most of the gradients are undefined
    for (const auto& parameter : net.parameters()) {
      gradients.push_back(parameter.grad());
      if (parameter.grad().defined()) whole.push_back(full_grad(parameter).flatten());
    }
    const auto joined = torch::cat(whole);
    EXPECT_NEAR(fsdp::sum(gradients), joined.sum().item<double>(), 1e-12 * joined.abs().sum().item<double>());
    EXPECT_EQ(fsdp::norm(gradients), clip_grad_norm_(group, 1e30));
    EXPECT_EQ(fsdp::norm({torch::Tensor()}), 0);
  });
}

TEST(GlobalSums, OfViewsAreRefusedBeforeRanksMeet) {
  run_thread_ranks(2, [](int rank) {
    Wild net;
    net.shard();
    const auto p = net.parameters()[0];
    EXPECT_EQ(fsdp::sum({torch::ones({3}), torch::Tensor()}), 3) << "which every rank has whole";
    expect_error([&] { return fsdp::sum({p.detach().view({-1})}); }, {"@sum", "parameter 'p0'", "found a view"});
    expect_error([&] { return fsdp::norm({p}, 0.0); }, {"expected p > 0 or infinity, found 0"});
    EXPECT_GT(fsdp::norm({p}), 0);
    EXPECT_THROW(static_cast<void>(fsdp::norm(net.parameters(), rank == 0 ? 2.0 : 3.0)), Mismatch);
  });
}

struct Tied : torch::nn::Module {
  torch::nn::Linear own{3, 3};
  torch::Tensor tied;
  explicit Tied(const torch::Tensor& weight) {
    register_module("own", own);
    tied = register_parameter("tied", weight);
  }
};

TEST(OptimClipping, CoversTheModelsOwnParametersOnlyWhereTheGroupOfATiedOneHasMore) {
  run_thread_ranks(2, [&](int) {
    auto encoder = linear_alike(3, 3);
    const auto decoder = build_alike([&] { return std::make_shared<Tied>(encoder->weight); });
    fully_shard(encoder);
    const auto group = fully_shard(static_cast<torch::nn::Module&>(*decoder));
    for (const auto& parameters : {encoder->parameters(), decoder->parameters()})
      for (const auto& parameter : parameters) parameter.mutable_grad() = torch::ones_like(parameter.detach());
    EXPECT_NEAR(clip_grad_norm_(group, 1.0), std::sqrt(9.0 + 3.0 + 9.0), 1e-6);
    EXPECT_TRUE(fsdp::all({encoder->bias.grad() == 1})) << "was scaled";
    EXPECT_NEAR(clip_grad_norm_(group_of(*encoder), 100.0), std::sqrt(3.0 + 9.0 / 21.0), 1e-5);
  });
}

TEST(OptimClipping, ANanOrAnInfinityOnOneRankIsSeenByAll) {
  run_thread_ranks(2, [&](int rank) {
    Wild net;
    const auto group = net.shard();
    for (const double norm_type : {2.0, 3.0, kInfinity})
      for (const double bad : {kInfinity, std::nan("")}) {
        SCOPED_TRACE(c10::str(norm_type, " ", bad));
        for (auto& parameter : net.parameters())
          parameter.mutable_grad() = torch::full_like(parameter.detach(), rank == 1 ? bad : 1.0);
        EXPECT_FALSE(std::isfinite(get_total_norm(group, norm_type)));
        EXPECT_THROW(static_cast<void>(get_total_norm(group, norm_type, /*error_if_nonfinite=*/true)), Error);
        const double norm = clip_grad_norm_(group, 1.0, norm_type);
        EXPECT_EQ(std::isnan(norm), std::isnan(bad));
        EXPECT_FALSE(std::isfinite(norm));
        // Finite gradients must become what torch::nn::utils::clip_grad_norm_ makes of them.
        if (rank == 1) continue;
        const LocalRows of_rank_0(group);
        for (auto& parameter : net.parameters())
          EXPECT_EQ(parameter.grad().isnan().any().item<bool>(), std::isnan(bad) && parameter.numel() > 0);
      }
  });
}

}  // namespace
}  // namespace fsdp::test
