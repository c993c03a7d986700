// A number of ranks among which whole parameters stay after forward.

#include "misuse/net.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using testing::AllOf;
using testing::HasSubstr;

TEST(ReshardWithin, ANumberThatDoesNotDivideTheRanksIsRefused) {
  for (const int ranks : {0, -1, 3, 4}) {
    run_thread_ranks(2, [&](int) {
      nn::Linear linear(4, 3);
      EXPECT_THAT(message_of([&] { fully_shard(linear, {.reshard_after_forward = Reshard::within(ranks)}); }),
                  AllOf(HasSubstr("reshard_after_forward"), HasSubstr("divides the 2 ranks"),
                        HasSubstr(c10::str("found ", ranks))));
      EXPECT_EQ(linear->weight.size(0), 3) << "it was sharded";
    });
  }
}

TEST(ReshardWithin, OneRankIsNeverAndAllAreAlways) {
  run_thread_ranks(2, [&](int) {
    const auto gathers = [](Reshard reshard) {
      nn::Sequential net;
      for (int i = 0; i < 5; ++i) net->push_back(nn::Linear(nn::LinearOptions(4, 4).bias(false)));
      FullyShardOptions options;
      options.reshard_after_forward = reshard;
      options.auto_wrap_policy = module_wrap_policy<nn::LinearImpl>();
      options.sync_module_states = true;
      const auto model = fully_shard(*net, options);
      torch::Tensor loss;
      {
        ForwardScope scope(model);
        loss = net->forward(torch::ones({2, 4})).sum();
      }
      loss.backward();
      return model.stats().gathers;
    };
    EXPECT_EQ(gathers(Reshard::within(1)), gathers(Reshard::never()));
    EXPECT_EQ(gathers(Reshard::within(2)), gathers(Reshard::always()));
    if (test_backend() != "shm") {
      EXPECT_GT(gathers(Reshard::within(2)), gathers(Reshard::within(1)));
    }
  });
}

}  // namespace
}  // namespace fsdp::test
