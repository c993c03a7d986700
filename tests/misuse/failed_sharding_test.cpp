// Tests that a call of fully_shard that throws, at whatever point, leaves the model as it was.

#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "misuse/net.h"
#include "support/decorator.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

// A communicator that throws in share(), as on a rank that is short of memory.
class NoMemoryToShare : public Decorator {
 public:
  explicit NoMemoryToShare(std::shared_ptr<Communicator> inner) : Decorator(std::move(inner), "main") {}
  std::vector<std::shared_ptr<SharedBuffer>> share(std::span<const SharedPart> parts, c10::Device device) override {
    if (is_short) throw Error(c10::str("no memory for ", parts.size(), " groups"));
    return Decorator::share(parts, device);
  }
  inline static thread_local bool is_short = false;

 private:
  void before(Operation, uint64_t, Tag&) override {}
  std::shared_ptr<Communicator> decorate(std::shared_ptr<Communicator> duplicate, const std::string&) override {
    return duplicate;
  }
};

// Copies of everything that fully_shard could change in a module.
struct Before {
  explicit Before(const nn::Module& module) {
    for (const auto& parameter : module.parameters()) {
      parameters.push_back(parameter);
      values.push_back(parameter.detach().clone());
      storages.push_back(parameter.storage().unsafeGetStorageImpl());
    }
  }

  void expect_unchanged() const {
    for (size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_TRUE(torch::equal(parameters[i].detach(), values[i])) << "parameter " << i;
      EXPECT_EQ(parameters[i].storage().unsafeGetStorageImpl(), storages[i]) << "parameter " << i;
      EXPECT_TRUE(torch::autograd::impl::hooks(parameters[i]).empty()) << "parameter " << i;
      EXPECT_EQ(torch::autograd::impl::post_acc_grad_hooks(parameters[i]), nullptr) << "parameter " << i;
    }
  }

  std::vector<torch::Tensor> parameters, values;
  std::vector<const c10::StorageImpl*> storages;
};

FullyShardOptions each_linear() { return {.auto_wrap_policy = module_wrap_policy<nn::LinearImpl>()}; }

TEST(AFailedFullyShard, LeavesTheModelAsItWasAndTrainingIsThatOfAnUnshardedOne) {
  auto training = small_training();
  training.shard = [](MisuseNetImpl& model) {
    const Before before(model);
    int asked = 0;
    FullyShardOptions throws;
    throws.auto_wrap_policy = [&](const WrapCandidate&) {
      if (++asked == 4) throw std::runtime_error("the policy's own");
      return true;
    };
    EXPECT_THROW(fully_shard(model, throws), std::runtime_error);
    before.expect_unchanged();
    NoMemoryToShare::is_short = true;
    expect_error<Error>([&] { fully_shard(model, each_linear()); }, {"no memory for 5 groups"});
    NoMemoryToShare::is_short = false;
    before.expect_unchanged();
    EXPECT_THROW(static_cast<void>(group_of(*model.up)), UsageError);
    small_loss(model, share(0)).backward();  // must work as if fsdp had never been called
    EXPECT_EQ(model.up->weight.grad().sizes(), model.up->weight.sizes());
    model.zero_grad();
    const Group group = fully_shard(model, each_linear());
    EXPECT_EQ(group.stats().groups, 5);
    return group;
  };
  ThreadRanksOptions ranks;
  ranks.wrap = [](std::shared_ptr<Communicator> inner, int) { return std::make_shared<NoMemoryToShare>(inner); };
  expect_same_outcome(train_unsharded(training, 2), train_on_thread_ranks(training, 2, ranks), training.tolerance);
}

TEST(AFailedFullyShard, OfRanksThatDifferLeavesTheModelAsItWasForAnotherProcessGroup) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  run_thread_ranks(2, [&](int r) {
    const auto net = build_alike([] { return std::make_shared<MisuseNetImpl>(); });
    const Before before(*net);
    auto options = each_linear();
    if (r == 1) options.reshard_after_forward = Reshard::always();
    message_of<Mismatch>([&] { fully_shard(*net, options); });
    before.expect_unchanged();
    auto alike = each_linear();
    alike.process_group = make_thread_rank(store, r, 2, {});
    auto model = fully_shard(*net, alike);
    EXPECT_EQ(model(small_ids(share(0))).size(0), 2);
    alike.process_group->communicator().barrier({"end", {}})->wait();
  });
}

}  // namespace
}  // namespace fsdp::test
