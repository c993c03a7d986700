#pragma once
/// \file
/// Training on the checked device: models that lie on a rank's device, their steps, and what has to be true of them.

#include <gmock/gmock.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/checked_device/checked_device.h"
#include "support/small_net.h"

namespace fsdp::test::checked {

/// A model with how its inputs and targets look. What it computes is Training's.
template <class M>
struct DeviceTraining : Training<M> {
  std::function<torch::Tensor(const Batch&)> inputs, targets;
  /// Else fully_shard finds it on the CPU.
  bool is_built_on_device = true;

  void finish() {
    this->loss = [*this](M& model, const Batch& batch) { return loss_of(model, inputs(batch), targets(batch)); };
  }
  static torch::Tensor loss_of(M& model, const torch::Tensor& x, const torch::Tensor& y) {
    return (model.forward(x) - y).square().mean();
  }
};

inline DeviceTraining<SmallNetImpl> small_net(const FullyShardOptions& options = {}) {
  DeviceTraining<SmallNetImpl> training{small_net_training(options), {}, {}, true};
  training.inputs = [](const Batch& batch) { return samples(batch, {5}); };
  training.targets = [](const Batch& batch) { return samples(batch, {3}); };
  training.finish();
  return training;
}

/// Divides evenly, so that the backend's own collectives carry it; the embedding's gradient is reduced first or last.
struct EvenNetImpl : torch::nn::Module {
  torch::nn::Embedding words{nullptr};
  torch::nn::ModuleList layers;
  EvenNetImpl() {
    words = register_module("words", torch::nn::Embedding(24, 12));
    register_module("layers", layers);
    for (int i = 0; i < 3; ++i) layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(12, 12).bias(false)));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = words->forward(x).sum(1);
    for (auto& layer : *layers) h = torch::tanh(layer->as<torch::nn::Linear>()->forward(h));
    return torch::linear(h, words->weight);  // tied
  }
};

inline DeviceTraining<EvenNetImpl> even_net(const FullyShardOptions& options = {}) {
  DeviceTraining<EvenNetImpl> training;
  training.build = [] { return std::make_shared<EvenNetImpl>(); };
  training.shard = [options](EvenNetImpl& net) {
    for (auto& layer : *net.layers) fully_shard(*layer, options);
    return fully_shard(static_cast<torch::nn::Module&>(net), options);
  };
  training.inputs = [](const Batch& batch) { return labels(batch, {4}, 24); };
  training.targets = [](const Batch& batch) { return samples(batch, {24}); };
  training.finish();
  return training;
}

/// No rank does anything while `act` runs on rank 0.
inline void alone(int rank, const std::function<void()>& act) {
  barrier();
  if (rank == 0) act();
  barrier();
}

inline void expect_host_waits(size_t expected) {
  const auto waits = take_host_waits();
  if (waits.size() == expected) return;
  ADD_FAILURE() << "the host waits " << waits.size() << " times, expected " << expected;
  for (const auto& wait : waits) ADD_FAILURE() << "a wait: " << wait;
}

template <class M>
torch::Tensor run_step(const DeviceTraining<M>&, M& model, const Group& group, torch::optim::Optimizer& optimizer,
                       const torch::Tensor& x, const torch::Tensor& y) {
  optimizer.zero_grad();
  torch::Tensor loss;
  {
    const Label label("forward");
    ForwardScope scope(group);
    loss = DeviceTraining<M>::loss_of(model, x, y);
  }
  {
    const Label label("backward");
    loss.backward();
  }
  const Label label("optimizer");
  optimizer.step();
  return loss.detach();
}

template <class M>
void expect_equal(M& model, const Outcome& expected, double tolerance) {
  const auto parameters = model.parameters();
  ASSERT_EQ(parameters.size(), expected.parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i)
    EXPECT_LT(relative_difference(expected.parameters[i], full_tensor(parameters[i]).cpu()), tolerance)
        << "parameter " << i;
}

/// What `fn(model, group, rank)` does with a model that lies on the rank's device.
template <class M, class Fn>
void on_ranks(const DeviceTraining<M>& training, int world, const Fn& fn) {
  std::vector<std::shared_ptr<M>> models;  // built here: threads share the random state
  for (int rank = 0; rank < world; ++rank) models.push_back(build_model(training));
  run_ranks(world, [&](int rank) {
    auto& model = *models[static_cast<size_t>(rank)];
    if (training.is_built_on_device) model.to(device(rank));
    const auto group = training.shard(model);
    fn(model, group, rank);
  });
}

/// `host_waits`: of each rank in each step.
template <class M>
void expect_steps_are_ordered(const DeviceTraining<M>& training, int world,
                              const std::function<void(const Group&, int rank)>& after_step = {},
                              size_t host_waits = 0) {
  SCOPED_TRACE("world " + std::to_string(world));
  const auto expected = train_unsharded(training, world);
  on_ranks(training, world, [&](M& model, const Group& group, int rank) {
    auto optimizer = training.optimizer(model.parameters());
    std::vector<torch::Tensor> x, y, losses;
    for (int step = 0; step < training.steps; ++step) {
      const Batch batch{step, rank * training.samples_per_rank, training.samples_per_rank};
      x.push_back(training.inputs(batch).to(device(rank)));
      y.push_back(training.targets(batch).to(device(rank)));
    }
    for (size_t step = 0; step < x.size(); ++step) {
      if (step == 1) alone(rank, [] { take_host_waits(); });
      losses.push_back(run_step(training, model, group, *optimizer, x[step], y[step]));
      if (after_step) after_step(group, rank);
    }
    alone(rank, [&] { expect_host_waits(host_waits * static_cast<size_t>(world) * (x.size() - 1)); });
    const auto mean = torch::stack(losses);
    default_process_group()->communicator().all_reduce(mean, ReduceOp::kSum, {"losses", {}})->wait();
    EXPECT_LT(relative_difference(torch::tensor(expected.losses, torch::kDouble), mean.cpu() / world),
              training.tolerance);
    expect_equal(model, expected, training.tolerance);
  });
}

}  // namespace fsdp::test::checked
