// Norms and sums over all rows of all ranks.

#include <gmock/gmock.h>

#include <cmath>

#include "support/oracle.h"
#include "misuse/net.h"

namespace fsdp::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Over many orders of magnitude and of both signs, so that the order of addition shows in the last bits.
struct Wild : torch::nn::Module {
  explicit Wild(c10::ScalarType dtype = torch::kDouble) {
    const std::vector<std::vector<int64_t>> sizes{{1009, 3}, {7, 331}, {1500}, {5, 1}, {6, 4, 3, 3}, {}};
    for (const auto& size : sizes) {
      const int index = static_cast<int>(parameters().size());
      auto values = samples({index, 0, 1}, size) * torch::pow(10.0, 6 * samples({index + 50, 0, 1}, size));
      values = values.squeeze(0).to(dtype);
      if (size.size() == 4) values = values.contiguous(torch::MemoryFormat::ChannelsLast);
      register_parameter("p" + std::to_string(index), values);
    }
  }
};

std::vector<double> norms_and_sum(const std::vector<torch::Tensor>& tensors) {
  std::vector<double> found;
  for (const double p : {1.0, 2.0, 3.0, static_cast<double>(INFINITY)}) found.push_back(fsdp::norm(tensors, p));
  found.push_back(fsdp::sum(tensors));
  return found;
}

TEST(GlobalSums, HaveTheSameBitsInEveryWorld) {
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kBFloat16}) {
    const Wild oracle(dtype);
    std::vector<torch::Tensor> all;
    for (const auto& parameter : oracle.parameters()) all.push_back(parameter.detach().to(torch::kDouble).flatten());
    const auto joined = torch::cat(all);
    const double magnitude = joined.abs().sum().item<double>();
    std::optional<std::vector<double>> expected;
    for (const int world : worlds_up_to(8)) {
      std::vector<std::vector<double>> found(static_cast<size_t>(world));
      run_thread_ranks(world, [&](int rank) {
        Wild net(dtype);
        const auto group = fully_shard(static_cast<torch::nn::Module&>(net));
        const ForwardScope scope(group);  // the same inside one
        found[static_cast<size_t>(rank)] = norms_and_sum(net.parameters());
        EXPECT_EQ(fsdp::norm(group), found[static_cast<size_t>(rank)][1]);
        EXPECT_EQ(fsdp::sum(group), found[static_cast<size_t>(rank)][4]);
      });
      if (!expected) expected = found[0];
      for (const auto& of_rank : found) EXPECT_EQ(of_rank, *expected) << "world " << world << ' ' << dtype;
    }
    EXPECT_NEAR((*expected)[0], magnitude, 1e-13 * magnitude);
    EXPECT_NEAR((*expected)[1], joined.norm().item<double>(), 1e-13 * (*expected)[1]);
    EXPECT_EQ((*expected)[3], joined.abs().max().item<double>());
    EXPECT_NEAR((*expected)[4], joined.sum().item<double>(), 1e-13 * magnitude);
  }
}

TEST(GlobalSums, OfGradientsAreThoseOfTheWholeOnes) {
  run_thread_ranks(3, [](int rank) {
    Wild net;
    const auto group = fully_shard(static_cast<torch::nn::Module&>(net));
    {
      ForwardScope scope(group);
      auto loss = (net.parameters()[0] * (rank + 1)).sum() + net.parameters()[4].square().sum();
      loss.backward();
    }
    std::vector<torch::Tensor> gradients;  // most of them undefined
    std::vector<torch::Tensor> whole;
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

TEST(GlobalSums, OfOtherTensorsAreRefusedBeforeRanksMeet) {
  run_thread_ranks(2, [](int rank) {
    Wild net;
    fully_shard(static_cast<torch::nn::Module&>(net));
    const auto p = net.parameters()[0];
    EXPECT_THAT(message_of([&] { fsdp::norm({p, torch::ones({3})}); }),
                AllOf(HasSubstr("fsdp::norm"), HasSubstr("found another tensor of sizes [3]")));
    EXPECT_THAT(message_of([&] { fsdp::sum({p.detach().view({-1})}); }),
                AllOf(HasSubstr(c10::str("[fsdp rank ", rank, "/2] sum")), HasSubstr("parameter 'p0'"),
                      HasSubstr("found a view")));
    EXPECT_THAT(message_of([&] { fsdp::norm({p}, 0.0); }), HasSubstr("expected p > 0 or infinity, found 0"));
    EXPECT_GT(fsdp::norm({p}), 0);
  });
}

TEST(GlobalSums, OfDifferentNormsAreAMismatch) {
  EXPECT_THROW(run_thread_ranks(2,
                                [](int rank) {
                                  Wild net;
                                  fully_shard(static_cast<torch::nn::Module&>(net));
                                  fsdp::norm(net.parameters(), rank == 0 ? 2.0 : 3.0);
                                }),
               Mismatch);
}

}  // namespace
}  // namespace fsdp::test
