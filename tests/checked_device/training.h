#pragma once
/// \file
/// Training on the checked device: models on a rank's device, their steps, and functions that check them.

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/axes.h"
#include "support/checked_device/caching_allocator.h"
#include "support/checked_device/checked_device.h"
#include "support/small_net.h"

namespace fsdp::test::checked {

inline c10::impl::VirtualGuardImpl streams() { return c10::impl::VirtualGuardImpl(kType); }
inline c10::Stream current_stream_of(int rank) { return streams().getStream(device(rank)); }
inline c10::Stream new_stream_of(int rank) { return streams().getNewStream(device(rank), 0); }

inline c10::Event recorded_on(const c10::Stream& stream) {
  c10::Event event(kType);
  event.record(stream);
  return event;
}
/// Makes `then` wait for everything that `first` was given.
inline void order(const c10::Stream& first, const c10::Stream& then) { recorded_on(first).block(then); }

inline FullyShardOptions on_host(FullyShardOptions options = {}, bool is_pinned = true) {
  options.offload_policy = CPUOffloadPolicy{is_pinned};
  return options;
}

/// Fixture for tests with rows in host memory.
class CheckedOffload : public CheckedDevice {
 protected:
  void TearDown() override {
    CachingAllocator::get().set_limit(std::nullopt);
    CheckedDevice::TearDown();
  }
};

/// One rank's inputs and targets, on its device.
struct Share {
  torch::Tensor x, y;
};

/// A training with its inputs and targets; Training describes what the model computes.
template <class M>
struct DeviceTraining : Training<M> {
  std::function<torch::Tensor(const Batch&)> inputs, targets;
  /// False if fully_shard gets the model on the CPU.
  bool is_built_on_device = true;

  void finish() {
    this->steps = 2;
    this->loss = [*this](M& model, const Batch& batch) { return loss_of(model, {inputs(batch), targets(batch)}); };
  }
  static torch::Tensor loss_of(M& model, const Share& share) {
    return (model.forward(share.x) - share.y).square().mean();
  }
  Share share_of(int step = 0, c10::ScalarType dtype = torch::kDouble) const {
    const Batch batch{step, rank() * this->samples_per_rank, this->samples_per_rank};
    const auto there = [&](const torch::Tensor& of) {
      return of.to(device(rank()), of.is_floating_point() ? dtype : of.scalar_type());
    };
    return {there(inputs(batch)), there(targets(batch))};
  }
  torch::Tensor forward(M& model, const Group& group, const Share& share) const {
    const Label label("forward");
    const ForwardScope scope(group);
    return loss_of(model, share);
  }
};

/// Returns a training on values that depend only on the sample. `inputs` and `targets` are numbers of values per
/// sample.
template <class M>
DeviceTraining<M> device_training(std::function<std::shared_ptr<M>()> build, std::function<Group(M&)> shard,
                                  int64_t inputs, int64_t targets) {
  DeviceTraining<M> training;
  training.build = std::move(build);
  training.shard = std::move(shard);
  training.inputs = [inputs](const Batch& batch) { return samples(batch, {inputs}); };
  training.targets = [targets](const Batch& batch) { return samples(batch, {targets}); };
  training.finish();
  return training;
}

/// Makes each block a param group; the other parameters belong to the root's group.
template <class M>
Group shard_all(M& net, const FullyShardOptions& options = {}) {
  for (auto& block : *net.blocks) fully_shard(*block, options);
  return fully_shard(static_cast<torch::nn::Module&>(net), options);
}

inline DeviceTraining<SmallNetImpl> small_net(const FullyShardOptions& options = {}, int64_t blocks = 2) {
  return device_training<SmallNetImpl>([=] { return std::make_shared<SmallNetImpl>(11, blocks); },
                                       [=](SmallNetImpl& net) { return shard_all(net, options); }, 5, 3);
}

/// Returns the training of a net that is sharded over the shard and replicate axes.
inline DeviceTraining<SmallNetImpl> small_net_over(Axes axes, const FullyShardOptions& options = {}) {
  auto training = small_net();
  training.shard = [=](SmallNetImpl& net) { return shard_blocks_over(placement_over(axes), net, options); };
  return training;
}

/// All sizes divide evenly, so the backend's own collectives move them. The embedding's gradient is reduced first or
/// last.
struct EvenNetImpl : torch::nn::Module {
  torch::nn::Embedding words = register_module("words", torch::nn::Embedding(24, 12));
  torch::nn::ModuleList blocks = register_module("blocks", torch::nn::ModuleList());
  EvenNetImpl() {
    for (int i = 0; i < 3; ++i) blocks->push_back(torch::nn::Linear(torch::nn::LinearOptions(12, 12).bias(false)));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = words->forward(x).sum(1);
    for (auto& layer : *blocks) h = torch::tanh(layer->as<torch::nn::Linear>()->forward(h));
    return torch::linear(h, words->weight);  // the weight is tied
  }
};

inline DeviceTraining<EvenNetImpl> even_net(const FullyShardOptions& options = {}) {
  auto training = device_training<EvenNetImpl>([] { return std::make_shared<EvenNetImpl>(); },
                                               [=](EvenNetImpl& net) { return shard_all(net, options); }, 0, 24);
  training.inputs = [](const Batch& batch) { return labels(batch, {4}, 24); };
  training.finish();
  return training;
}

/// Runs `act` on rank 0 while the other ranks do nothing.
inline void alone(int rank, const std::function<void()>& act) {
  barrier();
  if (rank == 0) act();
  barrier();
}

inline void expect_host_waits(size_t expected) {
  const auto waits = take_host_waits();
  EXPECT_EQ(waits.size(), expected) << "waits of the host:\n" << c10::Join("\n", waits);
}

template <class M>
torch::Tensor run_step(const DeviceTraining<M>& training, M& model, const Group& group,
                       torch::optim::Optimizer& optimizer, const Share& share) {
  optimizer.zero_grad();
  const auto loss = training.forward(model, group, share);
  {
    const Label label("backward");
    loss.backward();
  }
  const Label label("optimizer");
  optimizer.step();
  return loss.detach();
}

/// Calls `fn(model, group, rank)` on each rank, with a model on the rank's device. `timeout` is the timeout of the
/// process groups.
template <class M, class Fn>
void on_ranks(const DeviceTraining<M>& training, int world, const Fn& fn,
              std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  SCOPED_TRACE("world " + std::to_string(world));
  std::vector<std::shared_ptr<M>> models;  // built here, because threads share the random state
  for (int rank = 0; rank < world; ++rank) models.push_back(build_model(training));
  const auto run = [&](int rank) {
    const auto model = std::move(models[static_cast<size_t>(rank)]);  // the model keeps its rank in the process group
    if (training.is_built_on_device) model->to(device(rank));
    const auto group = training.shard(*model);
    fn(*model, group, rank);
  };
  run_ranks(world, run, timeout);
}

/// Copies the whole parameters to the CPU, and returns the copies. Collective.
inline std::vector<torch::Tensor> whole_values(const torch::nn::Module& model) {
  std::vector<torch::Tensor> values;
  for (const auto& parameter : model.parameters()) values.push_back(full_tensor(parameter).cpu());
  return values;
}

/// Expects that steps equal those of the unsharded model, without a violation. `host_waits` is the number of waits of
/// the host per rank and step.
template <class M>
void expect_steps_are_ordered(const DeviceTraining<M>& training, int world, size_t host_waits = 0,
                              const std::function<void(const Group&, int rank)>& after_step = {}) {
  const auto expected = train_unsharded(training, world);
  on_ranks(training, world, [&](M& model, const Group& group, int rank) {
    auto optimizer = training.optimizer(model.parameters());
    std::vector<Share> shares;
    std::vector<torch::Tensor> losses;
    for (int step = 0; step < training.steps; ++step) shares.push_back(training.share_of(step));
    for (size_t step = 0; step < shares.size(); ++step) {
      if (step == 1) alone(rank, [] { take_host_waits(); });
      losses.push_back(run_step(training, model, group, *optimizer, shares[step]));
      if (after_step) after_step(group, rank);
    }
    alone(rank, [&] { expect_host_waits(host_waits * static_cast<size_t>(world) * (shares.size() - 1)); });
    const auto mean = torch::stack(losses);
    default_process_group()->communicator().all_reduce(mean, ReduceOp::kSum, {"losses", {}})->wait();
    EXPECT_LT(relative_difference(torch::tensor(expected.losses, torch::kDouble), mean.cpu() / world),
              training.tolerance);
    const auto parameters = whole_values(model);
    ASSERT_EQ(parameters.size(), expected.parameters.size());
    for (size_t i = 0; i < parameters.size(); ++i)
      EXPECT_LT(relative_difference(expected.parameters[i], parameters[i]), training.tolerance) << i;
  });
}

}  // namespace fsdp::test::checked
