// Tests of collectives on a sharded tensor. Each rank has other rows, so their element-wise sum would be meaningless.

#include "misuse/net.h"

namespace fsdp::test {
namespace {

using torch::Tensor;

TEST(Collectives, OfRowsAreRefusedAndSayThatBackwardHasDoneIt) {
  const Words of_gradient{"the gradient of parameter 'up.weight' is sharded", "expected", "found this rank's rows",
                          "Backward has already averaged the gradient", "fsdp::full_grad(p)"};
  const Words of_rows{"parameter 'up.weight' is sharded", "fsdp::full_tensor"};
  expect_refused({
      {kInTraining,
       of_gradient,
       {[](auto& t) { all_reduce_(t.p.grad()); }, [](auto& t) { static_cast<void>(all_reduce(t.p.grad())); },
        [](auto& t) { broadcast_(t.p.grad()); }}},
      {kInTraining,
       of_rows,
       {[](auto& t) { all_reduce_(t.p); }, [](auto& t) { static_cast<void>(all_reduce(t.p.detach())); },
        [](auto& t) { broadcast_(t.p.data()); }, [](auto& t) { static_cast<void>(broadcast(t.p)); }}},
  });
}

TEST(Collectives, TakeRowsWhereTheyAreMeantAndWholeParametersInScopes) {
  run_thread_ranks(2, [](int) {
    const auto net = build_alike([] { return torch::nn::Linear(torch::nn::LinearOptions(4, 4).bias(false)); });
    auto model = fully_shard(net);
    const auto& p = net->weight;
    const auto whole = full_tensor(p);
    {
      const LocalRows rows(model);
      EXPECT_TRUE(torch::equal(all_reduce(p.detach()), whole.narrow(0, 0, 2) + whole.narrow(0, 2, 2)));
    }
    const ForwardScope scope(model);
    EXPECT_TRUE(torch::equal(all_reduce(p, ReduceOp::kMax), whole));
  });
}

}  // namespace
}  // namespace fsdp::test
