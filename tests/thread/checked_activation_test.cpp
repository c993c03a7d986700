// Parts that are computed again on the checked device: equal to the unsharded model, no violation, no wait of the host.

#include <fsdp/activation_checkpoint.h>
#include <gmock/gmock.h>

#include "thread/checked_training.h"

namespace fsdp::test::checked {
namespace {

class CheckedActivation : public CheckedDevice {};

struct CheckpointedNetImpl : SmallNetImpl {
  CheckpointOptions options;
  bool holds_parts = false;  // parts inside a part
  torch::Tensor run(torch::Tensor h) {
    for (auto& block : *blocks) h = activation_checkpoint(options, std::dynamic_pointer_cast<SmallBlockImpl>(block), h);
    return h;
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto h = torch::tanh(first->forward(x));
    const auto all = [this](const torch::Tensor& input) { return run(torch::tanh(input)); };
    return head->forward(holds_parts ? activation_checkpoint(options, all, h) : run(torch::tanh(h)));
  }
};

DeviceTraining<CheckpointedNetImpl> checkpointed_net(const CheckpointOptions& options, bool holds_parts) {
  DeviceTraining<CheckpointedNetImpl> training;
  training.build = [=] {
    auto net = std::make_shared<CheckpointedNetImpl>();
    net->options = options;
    net->holds_parts = holds_parts;
    return net;
  };
  training.shard = [](CheckpointedNetImpl& net) { return shard_blocks(net); };
  training.inputs = [](const Batch& batch) { return samples(batch, {5}); };
  training.targets = [](const Batch& batch) { return samples(batch, {3}); };
  training.finish();
  return training;
}

TEST_F(CheckedActivation, StepsOfPartsThatAreComputedAgainAreOrdered) {
  for (int world : worlds_up_to(3))
    for (bool holds_parts : {false, true}) expect_steps_are_ordered(checkpointed_net({}, holds_parts), world);
}

TEST_F(CheckedActivation, StepsWhoseInputsAreInHostMemoryAreOrderedAndTheHostWaitsForNoCopy) {
  for (int world : worlds_up_to(3))
    for (bool holds_parts : {false, true})
      expect_steps_are_ordered(checkpointed_net({.offload_inputs = true}, holds_parts), world);
}

TEST_F(CheckedActivation, StepsThatKeepProductsAreOrdered) {
  for (int world : worlds_up_to(2))
    expect_steps_are_ordered(checkpointed_net({.keeps_results = is_product}, false), world);
}

TEST_F(CheckedActivation, AnInputInHostMemoryLeavesTheDevice) {
  c10::impl::VirtualGuardImpl(kType).setDevice(device(0));
  const auto w = at::ones({4}, at::device(device(0)).dtype(at::kFloat)).requires_grad_();
  for (bool offloads : {false, true}) {
    auto x = at::full({4}, 3, at::device(device(0)).dtype(at::kFloat));
    const c10::weak_intrusive_ptr<c10::StorageImpl> kept(
        c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(x.storage().unsafeGetStorageImpl()));
    const auto result = activation_checkpoint({.offload_inputs = offloads},
                                              [&w](const torch::Tensor& h) { return h * w; }, std::move(x));
    x.reset();
    EXPECT_EQ(kept.expired(), offloads);
    result.sum().backward();
    EXPECT_TRUE(at::equal(w.grad().cpu(), at::full({4}, 3.0F)));
    w.mutable_grad() = torch::Tensor();
  }
}

}  // namespace
}  // namespace fsdp::test::checked
