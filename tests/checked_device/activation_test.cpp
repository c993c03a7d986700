// Tests that recomputed parts on the checked device give the unsharded model's results, without a violation and without
// a wait of the host.

#include <fsdp/activation_checkpoint.h>
#include <torch/csrc/autograd/graph_task.h>

#include "checked_device/training.h"
#include "support/checked_device/host_memory.h"

namespace fsdp::test::checked {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class CheckedActivation : public CheckedDevice {};

at::Tensor full(double value) { return at::full({4}, value, at::device(device(0)).dtype(at::kFloat)); }

struct CheckpointedNetImpl : SmallNetImpl {
  CheckpointOptions options;
  bool holds_parts = false;  // true if parts are inside a part
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

void expect_checkpointed_steps_are_ordered(const CheckpointOptions& options, bool holds_parts, int world) {
  SCOPED_TRACE(holds_parts ? "parts inside a part" : "parts");
  const auto build = [=] {
    auto net = std::make_shared<CheckpointedNetImpl>();
    net->options = options;
    net->holds_parts = holds_parts;
    return net;
  };
  const auto shard = [](CheckpointedNetImpl& net) { return shard_blocks(net); };
  expect_steps_are_ordered(device_training<CheckpointedNetImpl>(build, shard, 5, 3), world);
}

TEST_F(CheckedActivation, StepsOfPartsThatAreComputedAgainAreOrdered) {
  expect_checkpointed_steps_are_ordered({}, false, 3);
  expect_checkpointed_steps_are_ordered({}, true, 2);
  expect_checkpointed_steps_are_ordered({.keeps_results = is_product}, false, 2);
}

TEST_F(CheckedActivation, StepsWhoseInputsAreInHostMemoryAreOrderedAndTheHostWaitsForNoCopy) {
  for (const int world : {1, 3}) expect_checkpointed_steps_are_ordered({.offload_inputs = true}, world == 1, world);
}

TEST_F(CheckedActivation, AnInputInHostMemoryLeavesTheDevice) {
  const auto w = full(1).requires_grad_();
  for (bool offloads : {false, true}) {
    auto x = full(3);
    const c10::weak_intrusive_ptr<c10::StorageImpl> kept(
        c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(x.storage().unsafeGetStorageImpl()));
    const auto part = [&w](const torch::Tensor& h) { return h * w; };
    const auto result = activation_checkpoint({.offload_inputs = offloads}, part, std::move(x));
    x.reset();
    EXPECT_EQ(kept.expired(), offloads);
    result.sum().backward();
    EXPECT_TRUE(at::equal(w.grad().cpu(), at::full({4}, 3.0F)));
    w.mutable_grad() = torch::Tensor();
  }
}

// A chain of parts whose inputs are in host memory. It counts how many inputs have come back to the device by the time
// that each part is recomputed.
struct OffloadedChain {
  static constexpr size_t kBytes = 4 * sizeof(float);
  static constexpr int kParts = 3;

  at::Tensor w = full(2).requires_grad_();
  std::vector<size_t> came;  // number of inputs since the previous part; the last part comes first

  at::Tensor run(const at::Tensor& input) {
    auto x = input;
    for (int part = 0; part < kParts; ++part)
      x = activation_checkpoint(
          {.offload_inputs = true},
          [this](const torch::Tensor& h) {
            if (torch::autograd::get_current_graph_task_id() != -1) came.push_back(inputs_since());
            return h * w;
          },
          x);
    return x;
  }
  static size_t inputs_since() { return HostMemory::get().take_bytes().to_device / kBytes; }
};

TEST_F(CheckedActivation, TheInputsOfThePartThatIsNextComeWhileOneIsComputed) {
  OffloadedChain chain;
  const auto output = chain.run(full(3)).sum();
  OffloadedChain::inputs_since();
  take_host_waits();
  output.backward();
  EXPECT_THAT(chain.came, ElementsAre(2u, 1u, 0u)) << "its own input and the next part's, then the next part's";
  EXPECT_EQ(OffloadedChain::inputs_since(), 0u);
  EXPECT_THAT(take_host_waits(), IsEmpty());
  EXPECT_TRUE(at::equal(chain.w.grad().cpu(), at::full({4}, 3 * 3 * 2 * 2.0F)));
}

TEST_F(CheckedActivation, InputsThatABackwardDoesNotNeedGoWithIt) {
  OffloadedChain chain;
  const auto x = full(3);
  const auto first = chain.run(x).sum(), second = chain.run(x).sum();
  OffloadedChain::inputs_since();
  for (int pass = 0; pass < 2; ++pass) {
    second.backward({}, /*retain_graph=*/true);
    EXPECT_THAT(chain.came, ElementsAre(2u, 1u, 1u)) << "also the input of the other graph's last part";
    chain.came.clear();
  }
  second.backward();
  chain.came.clear();
  first.backward();
  EXPECT_THAT(chain.came, ElementsAre(2u, 1u, 0u)) << "inputs had left the device and came again";
}

// Backward runs each node on the stream on which forward computed it.
TEST_F(CheckedActivation, InputsThatCameForAnotherStreamComeAgain) {
  const auto own = current_stream_of(0), side = new_stream_of(0);
  OffloadedChain chain;
  const auto x = full(3);
  order(own, side);
  at::Tensor middle;
  {
    const c10::StreamGuard guard(side);
    middle = chain.run(x);
  }
  order(side, own);
  const auto output = chain.run(middle).sum();
  OffloadedChain::inputs_since();
  output.backward();
  EXPECT_THAT(chain.came, ElementsAre(2u, 1u, 1u, 2u, 1u, 0u)) << "the fourth fetches its input again, on its stream";
  order(own, side);  // a tensor that was made on one stream was used on the other
  order(side, own);
}

}  // namespace
}  // namespace fsdp::test::checked
