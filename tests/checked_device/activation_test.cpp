// Parts that are computed again on the checked device: equal to the unsharded model, no violation, no wait of the host.

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <fsdp/activation_checkpoint.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/graph_task.h>

#include "support/checked_device/host_memory.h"
#include "checked_device/training.h"

namespace fsdp::test::checked {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

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
    const auto result = activation_checkpoint(
        {.offload_inputs = offloads}, [&w](const torch::Tensor& h) { return h * w; }, std::move(x));
    x.reset();
    EXPECT_EQ(kept.expired(), offloads);
    result.sum().backward();
    EXPECT_TRUE(at::equal(w.grad().cpu(), at::full({4}, 3.0F)));
    w.mutable_grad() = torch::Tensor();
  }
}

// A chain of parts with inputs in host memory, and what had come back from there when each was computed again.
struct OffloadedChain {
  static constexpr size_t kBytes = 4 * sizeof(float);
  static constexpr int kParts = 3;

  at::Tensor w = at::full({4}, 2, at::device(device(0)).dtype(at::kFloat)).requires_grad_();
  std::vector<size_t> came;  // bytes since the part before, from the last part on

  at::Tensor run(const at::Tensor& input) {
    auto x = input;
    for (int part = 0; part < kParts; ++part)
      x = activation_checkpoint(
          {.offload_inputs = true},
          [this](const torch::Tensor& h) {
            if (torch::autograd::get_current_graph_task_id() != -1) came.push_back(bytes_since());
            return h * w;
          },
          x);
    return x;
  }
  static size_t bytes_since() { return HostMemory::get().take_bytes().to_device / kBytes; }
};

TEST_F(CheckedActivation, TheInputsOfThePartThatIsNextComeWhileOneIsComputed) {
  c10::impl::VirtualGuardImpl(kType).setDevice(device(0));
  OffloadedChain chain;
  const auto output = chain.run(at::full({4}, 3, at::device(device(0)).dtype(at::kFloat))).sum();
  OffloadedChain::bytes_since();
  take_host_waits();
  output.backward();
  EXPECT_THAT(chain.came, ElementsAre(2u, 1u, 0u)) << "inputs: its own and the next one's, then the next one's";
  EXPECT_EQ(OffloadedChain::bytes_since(), 0u);
  EXPECT_THAT(take_host_waits(), IsEmpty());
  EXPECT_TRUE(at::equal(chain.w.grad().cpu(), at::full({4}, 3 * 3 * 2 * 2.0F)));
}

TEST_F(CheckedActivation, InputsThatABackwardDoesNotNeedGoWithIt) {
  c10::impl::VirtualGuardImpl(kType).setDevice(device(0));
  OffloadedChain chain;
  const auto x = at::full({4}, 3, at::device(device(0)).dtype(at::kFloat));
  const auto first = chain.run(x).sum(), second = chain.run(x).sum();
  OffloadedChain::bytes_since();
  for (int pass = 0; pass < 2; ++pass) {
    second.backward({}, /*retain_graph=*/true);
    EXPECT_THAT(chain.came, ElementsAre(2u, 1u, 1u)) << "and those of the other graph's last part";
    chain.came.clear();
  }
  second.backward();
  chain.came.clear();
  first.backward();
  EXPECT_THAT(chain.came, ElementsAre(2u, 1u, 0u)) << "again, since they had gone";
}

// Backward of what was computed on a stream runs there.
TEST_F(CheckedActivation, InputsThatCameForAnotherStreamComeAgain) {
  c10::impl::VirtualGuardImpl(kType).setDevice(device(0));
  const c10::impl::VirtualGuardImpl streams(kType);
  const auto own = streams.getStream(device(0)), side = streams.getNewStream(device(0), 0);
  const auto let_wait = [](const c10::Stream& later, const c10::Stream& earlier) {
    c10::Event event(kType);
    event.record(earlier);
    event.block(later);
  };
  OffloadedChain chain;
  const auto x = at::full({4}, 3, at::device(device(0)).dtype(at::kFloat));
  let_wait(side, own);
  at::Tensor middle;
  {
    const c10::StreamGuard guard(side);
    middle = chain.run(x);
  }
  let_wait(own, side);
  const auto output = chain.run(middle).sum();
  OffloadedChain::bytes_since();
  output.backward();
  EXPECT_THAT(chain.came, ElementsAre(2u, 1u, 1u, 2u, 1u, 0u)) << "the fourth takes its own again, on its stream";
  let_wait(side, own);  // what was made on the one was used on the other
  let_wait(own, side);
}

}  // namespace
}  // namespace fsdp::test::checked
