// Sums over batches and ranks.

#include <fsdp/error.h>
#include <fsdp/metrics.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "support/thread_ranks.h"

namespace fsdp::test {
namespace {

using testing::ElementsAre;

TEST(RunningSums, AreTheSumsOverBatchesAndRanksAlsoOfARankThatAddedNothing) {
  for (int world : {1, 2, 3}) {
    run_thread_ranks(world, [&](int rank) {
      RunningSums sums(2, torch::kCPU);
      for (int batch = 0; batch < rank; ++batch) sums.add({torch::tensor(0.5F), torch::tensor(10)});
      const int batches = world * (world - 1) / 2;
      EXPECT_THAT(sums.over_ranks(), ElementsAre(0.5 * batches, 10.0 * batches));
    });
  }
}

TEST(RunningSums, KeepNoGraphAndRefuseAnotherNumberOfScalars) {
  RunningSums sums(1, torch::kCPU);
  const auto loss = torch::ones({}).requires_grad_() * 2;
  sums.add({loss});
  EXPECT_EQ(loss.use_count(), 1U);
  EXPECT_THROW(sums.add({loss, loss}), UsageError);
}

}  // namespace
}  // namespace fsdp::test
