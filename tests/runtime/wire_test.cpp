// Tests of a param group's custom collectives, with worked examples: fp32 rows that travel in bf16 and fp8, and whole
// parameters on rank 0 only.

#include <gmock/gmock.h>

#include <stdexcept>

#include "runtime/cost_net.h"
#include "support/axes.h"

namespace fsdp::test {
namespace {

using torch::Tensor;

// Every rank rounds every value, also those of its own rows, so that all ranks compute with the same numbers.
AllGather gather_in(c10::ScalarType dtype) {
  return [=](Communicator& ranks, std::vector<GatherPlane> planes, Tag tag) {
    auto low = planes;
    for (auto& [output, input] : low) {
      output = torch::empty_like(output, dtype);
      input = output.narrow(0, ranks.rank() * input.numel(), input.numel()).copy_(input);
    }
    return followed_by(ranks.all_gather(low, std::move(tag)), planes[0].output, [=] {
      for (size_t i = 0; i < planes.size(); ++i) planes[i].output.copy_(low[i].output);
    });
  };
}

std::shared_ptr<Work> reduce_in_bf16(Communicator& ranks, std::vector<ReducePlane> planes, double scale, Tag tag) {
  std::vector<Tensor> results, low;
  for (auto& [output, input] : planes) {
    results.push_back(output);
    low.push_back(output = torch::empty_like(output, torch::kBFloat16));
    for (auto& piece : input) piece.values = piece.values.to(torch::kBFloat16);
  }
  return followed_by(ranks.reduce_scatter(std::move(planes), scale, std::move(tag)), results[0], [=] {
    for (size_t i = 0; i < results.size(); ++i) results[i].copy_(low[i]);
  });
}

// Returns the numbers of bytes that a step gathers and that it reduces.
std::pair<uint64_t, uint64_t> bytes_of_a_step(const CostRank& on) {
  on.clear();
  on.net.zero_grad();
  on.train(0);
  const auto& log = on.recorded.log(on.rank);
  return {log.bytes("all_gather"), log.bytes("reduce_scatter")};
}

struct LowGather {
  c10::ScalarType dtype;  // in fp8, weights of this magnitude need no scale
  uint64_t factor;        // factor by which the gathered bytes shrink
  double rounding;
};

TEST(LowPrecisionOnTheWire, TakesFewerBytesAndRoundsWhatTravelsOnly) {
  for (const auto& low_gather : {LowGather{torch::kBFloat16, 2, 0.05}, LowGather{torch::kFloat8_e4m3fn, 4, 0.07}})
    on_cost_ranks(3, {.backend = "gloo"}, [=](const CostRank& on) {
      const auto& [dtype, factor, rounding] = low_gather;
      const auto weight_in_a_scope = [&] {
        return in_scope(on.group, [&] { return on.net.first->weight.detach().clone(); });
      };
      const auto whole = full_tensor(on.net.first->weight);
      const auto full = bytes_of_a_step(on);
      std::vector<Tensor> gradients;
      for (const auto& parameter : on.net.parameters()) gradients.push_back(full_grad(parameter));
      std::vector<Group> groups{on.group};
      for (int64_t i = 0; i < kDepth; ++i) groups.push_back(on.group_at(i));
      for (const auto& group : groups) {
        group.set_custom_all_gather(gather_in(dtype));
        group.set_custom_reduce_scatter(reduce_in_bf16);
      }
      const auto low = bytes_of_a_step(on);
      EXPECT_EQ(low.first * factor, full.first);
      // Bytes that travel beside the gradients: for each rank and parameter, the number of ranks that have a gradient.
      const uint64_t counts = 3 * on.net.parameters().size() * sizeof(float);
      EXPECT_EQ((low.second - counts) * 2, full.second - counts);
      EXPECT_TRUE(torch::equal(full_tensor(on.net.first->weight), whole)) << "rows are as they were";
      EXPECT_TRUE(torch::equal(weight_in_a_scope(), whole.to(dtype).to(torch::kFloat)));
      EXPECT_LT(relative_difference(whole, weight_in_a_scope()), rounding);
      for (size_t i = 0; i < gradients.size() && dtype == torch::kBFloat16; ++i)
        EXPECT_LT(relative_difference(gradients[i], full_grad(on.net.parameters()[i])), rounding);
      on.group.set_custom_all_gather({});
      EXPECT_TRUE(torch::equal(weight_in_a_scope(), whole));
    });
}

// bf16 represents these numbers exactly, so nothing is rounded. A parameter that no rank used gets no gradient.
struct Powers : torch::nn::Module {
  Tensor weight = register_parameter("weight", torch::full({5, 3}, 0.5)),
         unused = register_parameter("unused", torch::ones({4}));
};

// A Work of a user's communicator. It overrides only wait(), the one function that is pure virtual.
struct PlainWork : Work {
  explicit PlainWork(std::shared_ptr<Work> reduction) : inner(std::move(reduction)) {}
  void wait() override { inner->wait(); }
  const std::shared_ptr<Work> inner;
};

std::shared_ptr<Work> reduce_plainly(Communicator& ranks, std::vector<ReducePlane> planes, double scale, Tag tag) {
  return std::make_shared<PlainWork>(ranks.reduce_scatter(std::move(planes), scale, std::move(tag)));
}

TEST(LowPrecisionOnTheWire, MayBeTheFirstStepOfAReductionOverReplicasToo) {
  for (const char* backend : {"shm", "gloo"})
    for (const ReduceScatter& reduce : {ReduceScatter(reduce_in_bf16), ReduceScatter(reduce_plainly)})
      run_thread_ranks(
          4,
          [&](int rank) {
            Powers net;
            const auto group = shard_over(placement_over({2, 2}), module_tree(net), {});
            group.set_custom_all_gather(gather_in(torch::kBFloat16));
            group.set_custom_reduce_scatter(reduce);
            in_scope(group, [&] { return (net.weight * (rank + 1)).sum(); }).backward();
            EXPECT_TRUE(torch::equal(full_grad(net.weight), torch::full({5, 3}, 2.5)));
            EXPECT_FALSE(net.unused.grad().defined());
          },
          {.backend = backend});
}

// A collective that is complete when the test says so.
struct PendingWork : Work {
  int waits = 0;
  Next next;
  void wait() override { ++waits; }
  void then(Next follower) override { next = std::move(follower); }
};

// With replicas, the second step follows a custom reduce_scatter, and begins under the rank's lock.
TEST(AFollowedCollective, IsFollowedOnceItIsDoneWithoutAnybodyWaiting) {
  const auto inner = std::make_shared<PendingWork>();
  std::vector<std::string> order;
  const auto work = followed_by(inner, torch::zeros({1}), [&] { order.emplace_back("act"); });
  work->then([&] { order.emplace_back("next"); });
  EXPECT_EQ(inner->waits, 0);
  EXPECT_THAT(order, testing::IsEmpty());
  ASSERT_TRUE(inner->next);
  inner->next();
  EXPECT_THAT(order, testing::ElementsAre("act", "next"));
  work->wait();
  EXPECT_EQ(order.size(), 2u) << "it acts once";
}

TEST(AFollowedCollective, ThatFailsToActIsNotFollowedAndItsErrorIsThatOfTheWait) {
  const auto inner = std::make_shared<PendingWork>();
  bool is_followed = false;
  const auto work = followed_by(inner, torch::zeros({1}), [] { throw std::runtime_error("no room"); });
  work->then([&] { is_followed = true; });
  ASSERT_TRUE(inner->next);
  EXPECT_NO_THROW(inner->next());
  EXPECT_FALSE(is_followed);
  for (int time = 0; time < 2; ++time) EXPECT_THROW(work->wait(), std::runtime_error);
}

TEST(SummonedByRank0Only, AreWholeThereAndRowsElsewhere) {
  for (const auto* backend : {"gloo", "shm"})
    on_cost_ranks(3, {.backend = backend}, [](const CostRank& on) {
      std::vector<Tensor> expected;
      for (const auto& parameter : on.net.parameters()) expected.push_back(full_tensor(parameter));
      const int64_t all = on.root + kDepth * on.block, largest = std::max(on.root, on.block);
      on.group.reset_peak_stats();
      {
        auto whole = summon_full_params(on.group, {.rank0_only = true});
        torch::NoGradGuard no_grad;
        for (size_t i = 0; i < expected.size(); ++i) {
          const auto parameter = on.net.parameters()[i];
          if (on.rank == 0) {
            EXPECT_TRUE(torch::equal(parameter.detach(), expected[i]));
            parameter.zero_();
          } else {
            EXPECT_EQ(parameter.size(0), local_rows(parameter).count);
          }
        }
        EXPECT_EQ(on.group.stats().whole.current, on.rank == 0 ? all : 0);
        EXPECT_THROW(whole.write_back(), UsageError);
      }
      EXPECT_LE(on.group.stats().whole.peak, on.rank == 0 ? all : largest);
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(torch::equal(full_tensor(on.net.parameters()[i]), expected[i])) << "nothing was written";
      on.train(0);
    });
}

}  // namespace
}  // namespace fsdp::test
