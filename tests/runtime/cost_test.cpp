// Tests of the cost of a step: its collectives, the operators that enter the library, and what must not grow with the
// number of groups.

#include "runtime/cost_net.h"
#include "support/decorator.h"

namespace fsdp::test {
namespace {

using testing::ElementsAre;
using torch::Tensor;

TEST(Cost, CollectivesOfAStepWithReshard) {
  for (int world : worlds_up_to(3))
    on_cost_ranks(world, [&](const CostRank& on) {
      const bool communicates = world > 1;
      for (int step = 0; step < 2; ++step) {
        on.clear();
        auto loss = on.forward(step);
        EXPECT_EQ(on.count("all_gather"), communicates ? gathers(kDepth + 1) : 0) << "step " << step;
        if (test_backend() == "shm" && communicates) {
          EXPECT_EQ(on.count("barrier"), 1) << "step " << step;
        }
        on.clear();
        loss.backward();
        EXPECT_LE(on.count("all_gather"), communicates ? gathers(kDepth) : 0) << "step " << step;
        if (!communicates) continue;
        EXPECT_EQ(on.count("barrier"), 0) << "step " << step;
        EXPECT_THAT(on.recorded.subjects(on.rank, "reduce_scatter"),
                    ElementsAre("blocks.3", "blocks.2", "blocks.1", "blocks.0", "SmallNet"))
            << "the reverse order of first reads";
      }
      if (!communicates) {
        EXPECT_EQ(on.group.stats().whole.peak, 0);
      }
    });
}

TEST(Cost, ReshardNeverGathersOncePerGroup) {
  on_cost_ranks(2, {.sharding = {.reshard_after_forward = Reshard::never()}}, [](const CostRank& on) {
    on.train(0);
    EXPECT_EQ(on.count("all_gather"), gathers(kDepth + 1));
    EXPECT_EQ(on.count("reduce_scatter"), kDepth + 1);
  });
}

// Forward reads the last block's norm without recording, so a backward may recompute it. This backward recomputes
// nothing.
TEST(Cost, AGroupWithAParameterThatWasReadUnrecordedHoldsUpNoOthers) {
  on_cost_ranks(2, [](const CostRank& on) {
    int64_t reductions = 0;
    ForwardScope scope(on.group);
    auto h = torch::tanh(on.net.first(on.input(0)));
    h.register_hook([&](const Tensor&) { reductions = on.group.stats().reductions; });
    for (int64_t i = 0; i + 1 < kDepth; ++i) h = on.block_at(i).forward(h);
    auto& last = on.block_at(kDepth - 1);
    Tensor unrecorded;
    {
      const torch::NoGradGuard not_recording;
      unrecorded = last.norm(h);
    }
    on.net.head(h + last.out(torch::gelu(last.in(unrecorded)))).sum().backward();
    EXPECT_EQ(reductions, kDepth);
    EXPECT_FALSE(last.norm->weight.grad().defined());
    EXPECT_TRUE(last.in->weight.grad().defined());
  });
}

TEST(Cost, OperatorsThatTouchNoParameterNeverEnterTheLibrary) {
  on_cost_ranks(1, [](const CostRank& on) {
    const auto before = on.group.stats().intercepted_operators;
    auto x = torch::ones({4, 4}, torch::requires_grad());
    torch::softmax(torch::matmul(x, x).relu(), -1).sum().backward();
    EXPECT_EQ(on.group.stats().intercepted_operators, before);
    on.forward(0);
    EXPECT_GT(on.group.stats().intercepted_operators, before);
  });
}

TEST(Cost, KeptCopiesSpareGathersUntilRowsAreWritten) {
  on_cost_ranks(2, [](const CostRank& on) {
    torch::optim::SGD optimizer(on.net.parameters(), 0.1);
    on.group.set_reshard_after_forward(false);
    on.group.set_reshard_after_backward(false);
    on.train(0);
    on.clear();
    on.train(1);
    EXPECT_EQ(on.count("all_gather"), 0);
    optimizer.step();
    on.train(2);
    EXPECT_EQ(on.count("all_gather"), gathers(kDepth + 1));
  });
}

// The library does not see writes through raw pointers, so rows count as written when LocalRows closes.
TEST(Cost, CopiesThatWereAskedForAreRenewedAfterLocalRows) {
  on_cost_ranks(2, [](const CostRank& on) {
    on.group.set_reshard_after_backward(false);
    on.group_at(2).unshard().wait();
    on.forward(0);
    {
      LocalRows rows(on.group);
      for (auto& parameter : on.net.parameters()) std::fill_n(parameter.data_ptr<float>(), parameter.numel(), 0.0F);
    }
    torch::NoGradGuard no_grad;
    ForwardScope scope(on.group);
    for (auto& parameter : on.net.parameters()) EXPECT_EQ(parameter.abs().max().item<float>(), 0);
  });
}

TEST(Cost, UnshardBringsMemoryEarly) {
  on_cost_ranks(2, [](const CostRank& on) {
    on.group_at(2).unshard().wait();
    on.clear();
    auto loss = on.forward(0);
    EXPECT_EQ(on.count("all_gather"), gathers(kDepth));
    loss.backward();
    on.group_at(2).reshard();
    EXPECT_EQ(on.group.stats().whole.current, 0);
  });
}

// Numbers of calls of a rank's communicator.
struct Asked {
  int shares = 0;
  size_t buffers = 0;
  int collectives = 0;
};

class AskedCommunicator : public Decorator {
 public:
  AskedCommunicator(std::shared_ptr<Communicator> inner, Asked& asked)
      : Decorator(std::move(inner), "main"), asked_(asked) {}

  std::vector<std::shared_ptr<SharedBuffer>> share(std::span<const SharedPart> parts, c10::Device device) override {
    ++asked_.shares;
    asked_.buffers += parts.size();
    return Decorator::share(parts, device);
  }

 private:
  void before(Operation, uint64_t, Tag&) override { ++asked_.collectives; }
  std::shared_ptr<Communicator> decorate(std::shared_ptr<Communicator> duplicate, const std::string&) override {
    return std::make_shared<AskedCommunicator>(std::move(duplicate), asked_);
  }
  Asked& asked_;
};

TEST(CostOfMany, GroupsAreShardedAndGradientsHaveTheirNormInOneCollective) {
  constexpr int kGroups = 40;
  std::vector<Asked> of_ranks(2);
  ThreadRanksOptions ranks;
  ranks.wrap = [&](std::shared_ptr<Communicator> inner, int r) {
    return std::make_shared<AskedCommunicator>(std::move(inner), of_ranks[static_cast<size_t>(r)]);
  };
  run_thread_ranks_with(2, ranks, [&](int r) {
    auto& asked = of_ranks[static_cast<size_t>(r)];
    torch::nn::Sequential net;
    for (int i = 0; i < kGroups; ++i) net->push_back(torch::nn::Linear(4, 4));
    for (auto& parameter : net->parameters()) parameter.detach().fill_(1);
    asked = {};
    const auto model = fully_shard(net, {.auto_wrap_policy = module_wrap_policy<torch::nn::LinearImpl>()});
    EXPECT_EQ(model.stats().groups, kGroups + 1);
    EXPECT_EQ(asked.buffers, kGroups);
    EXPECT_EQ(asked.shares, 1);
    EXPECT_EQ(asked.collectives, 1) << "the ranks agree what they shard";
    for (auto& parameter : net->parameters()) parameter.mutable_grad() = torch::ones_like(parameter);
    asked = {};
    clip_grad_norm_(model, 1.0);
    EXPECT_EQ(asked.collectives, 1) << "the norm";
  });
}

}  // namespace
}  // namespace fsdp::test
