// What must not grow with the number of groups.

#include "support/decorator.h"
#include "support/oracle.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

// What was asked of a rank's communicator.
struct Asked {
  int shares = 0;
  size_t buffers = 0;
  int reserves = 0, collectives = 0;
};

class AskedCommunicator : public Decorator {
 public:
  AskedCommunicator(std::shared_ptr<Communicator> inner, std::shared_ptr<Asked> asked)
      : Decorator(std::move(inner), "main"), asked_(std::move(asked)) {}

  std::vector<std::shared_ptr<SharedBuffer>> share(std::span<const SharedPart> parts, c10::Device device) override {
    ++asked_->shares;
    asked_->buffers += parts.size();
    return Decorator::share(parts, device);
  }
  void reserve(size_t bytes) override {
    ++asked_->reserves;
    Decorator::reserve(bytes);
  }

 private:
  void before(Operation, uint64_t, Tag&) override { ++asked_->collectives; }
  std::shared_ptr<Communicator> decorate(std::shared_ptr<Communicator> duplicate, const std::string&) override {
    return std::make_shared<AskedCommunicator>(std::move(duplicate), asked_);
  }
  const std::shared_ptr<Asked> asked_;
};

// A model of so many groups on two ranks; what `act` does with it is counted.
Asked asked_for(int groups, const std::function<void(nn::Sequential&, Asked&)>& act) {
  std::vector<std::shared_ptr<Asked>> asked{std::make_shared<Asked>(), std::make_shared<Asked>()};
  ThreadRanksOptions ranks;
  ranks.wrap = [&](std::shared_ptr<Communicator> inner, int r) {
    return std::make_shared<AskedCommunicator>(std::move(inner), asked[static_cast<size_t>(r)]);
  };
  run_thread_ranks(
      2,
      [&](int r) {
        nn::Sequential net;
        for (int i = 0; i < groups; ++i) {
          net->push_back(nn::Linear(4, 4));
          for (auto& parameter : net[static_cast<size_t>(i)]->parameters()) parameter.detach().fill_(i);
        }
        act(net, *asked[static_cast<size_t>(r)]);
      },
      ranks);
  return *asked[1];
}

Group shard_layers(nn::Sequential& net) {
  FullyShardOptions options;
  options.auto_wrap_policy = module_wrap_policy<nn::LinearImpl>();
  return fully_shard(net, options);
}

Asked asked_for_sharding(int groups) {
  return asked_for(groups, [&](nn::Sequential& net, Asked& asked) {
    asked = {};
    EXPECT_EQ(shard_layers(net).stats().groups, groups + 1);
  });
}

TEST(CostOfMany, GroupsOfOneCallOfFullyShardShareMemoryAtOnce) {
  for (int groups : {2, 40}) {
    const auto asked = asked_for_sharding(groups);
    EXPECT_EQ(asked.buffers, groups);
    EXPECT_EQ(asked.shares, 1) << groups;
    EXPECT_EQ(asked.reserves, 1) << groups;
    EXPECT_EQ(asked.collectives, 1) << groups << ": the ranks agree what they shard";
  }
}

TEST(CostOfMany, GradientsHaveTheirNormInOneCollective) {
  for (int groups : {2, 40}) {
    const auto asked = asked_for(groups, [](nn::Sequential& net, Asked& its) {
      const auto model = shard_layers(net);
      for (auto& parameter : net->parameters()) parameter.mutable_grad() = torch::ones_like(parameter);
      its = {};
      clip_grad_norm_(model, 1.0);
    });
    EXPECT_EQ(asked.collectives, 1) << groups;
  }
}

}  // namespace
}  // namespace fsdp::test
