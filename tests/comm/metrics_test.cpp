// Tests of blocking collectives for metrics and decisions, which return a new tensor on every rank.

#include <fsdp/collectives.h>
#include <torch/torch.h>

#include "comm/frame.h"

namespace fsdp::test {
namespace {

class Metrics : public testing::TestWithParam<int> {};

TEST_P(Metrics, AreReducedToTheSameBitsOnEveryRankAndTheArgumentStays) {
  const int world = GetParam();
  run_thread_ranks(world, [&](int rank) {
    for (auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kLong, at::kInt, at::kByte}) {
      const auto own = at::arange(6, dtype).view({2, 3}).t() + rank;  // not contiguous
      const auto first = at::arange(6, dtype).view({2, 3}).t();
      EXPECT_TRUE(at::equal(all_reduce(own), first * world + world * (world - 1) / 2)) << dtype;
      EXPECT_TRUE(at::equal(all_reduce(own, ReduceOp::kMax), first + (world - 1))) << dtype;
      EXPECT_TRUE(at::equal(all_reduce(own, ReduceOp::kMin), first)) << dtype;
      EXPECT_TRUE(at::equal(own, first + rank)) << dtype;
    }
    EXPECT_EQ(all_reduce(at::scalar_tensor(2.0)).dim(), 0);
    EXPECT_EQ(all_reduce(at::empty({0, 3})).sizes(), at::IntArrayRef({0, 3}));
    EXPECT_TRUE(all_reduce(torch::full({}, rank == world - 1, torch::kBool), ReduceOp::kMax).item<bool>());
    double sum = 0;
    for (int r = 0; r < world; ++r) sum += 0.1 * (r + 1);
    EXPECT_EQ(mean(0.1 * (rank + 1)), sum / world);
  });
}

TEST_P(Metrics, AreWrittenInPlaceWhereTheNameSaysSo) {
  const int world = GetParam();
  run_thread_ranks(world, [&](int rank) {
    const auto parameter = torch::full({2, 3}, rank, torch::kFloat).requires_grad_();
    const auto version = parameter._version();
    all_reduce_(parameter.t());  // a non-contiguous view of a tensor that requires grad
    EXPECT_TRUE(parameter.eq(world * (world - 1) / 2).all().item<bool>());
    EXPECT_GT(parameter._version(), version) << "autograd can see the write";
    const auto column = parameter.detach().t()[0].fill_(rank);
    all_reduce_(column, ReduceOp::kMax);
    EXPECT_TRUE(parameter.t()[0].eq(world - 1).all().item<bool>());
    const auto own = at::full({2}, rank, at::kLong);
    broadcast_(own, world - 1);
    EXPECT_TRUE(own.eq(world - 1).all().item<bool>());
  });
}

TEST_P(Metrics, ComeFromOneRankOrFromAll) {
  const int world = GetParam();
  run_thread_ranks(world, [&](int rank) {
    const auto own = at::full({3}, rank, at::kLong);
    for (int root = 0; root < world; ++root) EXPECT_TRUE(broadcast(own, root).eq(root).all().item<bool>());
    EXPECT_TRUE(own.eq(rank).all().item<bool>());
    const auto gathered = all_gather(at::full({2, 1}, rank, at::kFloat));
    EXPECT_EQ(gathered.sizes(), at::IntArrayRef({world, 2, 1}));
    for (int r = 0; r < world; ++r) EXPECT_TRUE(gathered[r].eq(r).all().item<bool>());
    EXPECT_EQ(all_gather(at::scalar_tensor(1.0)).sizes(), at::IntArrayRef({world}));
  });
}

TEST_P(Metrics, HaveNoAutograd) {
  run_thread_ranks(GetParam(), [](int) {
    const auto loss = torch::ones({2}, torch::requires_grad()) * 2;
    EXPECT_FALSE(all_reduce(loss).requires_grad());
    EXPECT_FALSE(broadcast(loss).requires_grad());
    EXPECT_FALSE(all_gather(loss).requires_grad());
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Metrics, testing::Values(1, 3));

TEST(MetricsOfAGroup, GoOverTheGroupThatIsNamedAndRefuseNothingAndWhatDiffers) {
  run_thread_ranks(2, [](int rank) {
    const auto group = default_process_group();
    EXPECT_THROW(static_cast<void>(all_reduce({})), UsageError);
    EXPECT_THROW(static_cast<void>(broadcast({})), UsageError);
    EXPECT_THROW(static_cast<void>(all_gather({})), UsageError);
    EXPECT_THROW(static_cast<void>(broadcast(at::ones({1}), 2)), UsageError);
    const ThreadProcessGroupGuard none(nullptr);
    EXPECT_EQ(mean(rank, group), 0.5);
    EXPECT_EQ(broadcast(at::full({}, rank, at::kLong), 1, group).item<int64_t>(), 1);
    // The tensors of the two ranks have different shapes but equally many bytes.
    expect_error<Mismatch>([&] { return all_gather(at::zeros({2 + rank, 3 - rank}), group); }, {"[2, 3]", "[3, 2]"});
  });
}

}  // namespace
}  // namespace fsdp::test
