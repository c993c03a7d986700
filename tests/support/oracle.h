#pragma once
/// \file
/// The oracle of sharded training: the same model trained unsharded on the joined batch.

#include <fsdp/fsdp.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/thread_ranks.h"

namespace fsdp::test {

/// The worlds to test; FSDP_TEST_MAX_WORLD keeps slow builds to the smaller ones.
inline std::vector<int> worlds_up_to(int largest) {
  const char* limit = std::getenv("FSDP_TEST_MAX_WORLD");
  if (limit != nullptr) largest = std::min(largest, std::max(1, std::atoi(limit)));
  std::vector<int> worlds;
  for (int world : {1, 2, 3, 4, 8})
    if (world <= largest) worlds.push_back(world);
  return worlds;
}

/// The largest difference of two tensors relative to the largest magnitude of the first.
inline double relative_difference(const torch::Tensor& expected, const torch::Tensor& found) {
  if (expected.sizes() != found.sizes()) return std::numeric_limits<double>::infinity();
  if (expected.numel() == 0) return 0.0;
  double difference = (expected - found).abs().max().template item<double>();
  return difference / std::max(1e-30, expected.abs().max().template item<double>());
}

/// Samples `first` to `first + count` of step `step` of a training run.
struct Batch {
  int step = 0;
  int64_t first = 0;
  int64_t count = 0;
};

/// One model and how to train it. `M` is a torch::nn::Module.
template <class M>
struct Training {
  /// Makes the model; called after torch::manual_seed with one seed, in the main thread only.
  std::function<std::shared_ptr<M>()> build;
  /// Shards it bottom-up; the last group covers everything.
  std::function<Group(M&)> shard;
  /// The mean loss over the batch.
  std::function<torch::Tensor(M&, const Batch&)> loss;
  int steps = 4;
  int64_t samples_per_rank = 2;
  double tolerance = 1e-10;
  c10::ScalarType dtype = torch::kDouble;
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)> optimizer = [](auto parameters) {
    return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-2));
  };
};

/// What a training run leaves behind.
struct Outcome {
  std::vector<double> losses;
  std::vector<torch::Tensor> parameters;
};

template <class M>
std::shared_ptr<M> build_model(const Training<M>& training) {
  torch::manual_seed(7);
  auto model = training.build();
  model->to(training.dtype);
  return model;
}

/// Trains unsharded on the joined batch of `world` ranks.
template <class M>
Outcome train_unsharded(const Training<M>& training, int world) {
  auto model = build_model(training);
  auto optimizer = training.optimizer(model->parameters());
  Outcome outcome;
  for (int step = 0; step < training.steps; ++step) {
    optimizer->zero_grad();
    auto loss = training.loss(*model, {step, 0, world * training.samples_per_rank});
    loss.backward();
    optimizer->step();
    outcome.losses.push_back(loss.template item<double>());
  }
  for (const auto& parameter : model->parameters()) outcome.parameters.push_back(parameter.detach().clone());
  return outcome;
}

/// Trains one rank's share in a forward scope per step. Collective.
template <class M>
Outcome train_sharded(const Training<M>& training, M& model) {
  auto group = training.shard(model);
  auto optimizer = training.optimizer(model.parameters());
  Outcome outcome;
  int64_t count = training.samples_per_rank;
  for (int step = 0; step < training.steps; ++step) {
    optimizer->zero_grad();
    torch::Tensor loss;
    {
      ForwardScope scope(group);
      loss = training.loss(model, {step, rank() * count, count});
    }
    loss.backward();
    optimizer->step();
    auto mean = loss.detach().clone().reshape({1});
    default_process_group()->communicator().all_reduce(mean, ReduceOp::kSum, {"loss", {}})->wait();
    outcome.losses.push_back(mean.template item<double>() / world_size());
  }
  for (const auto& parameter : model.parameters()) outcome.parameters.push_back(full_tensor(parameter));
  return outcome;
}

inline void expect_same_outcome(const Outcome& expected, const Outcome& found, double tolerance) {
  ASSERT_EQ(expected.losses.size(), found.losses.size());
  for (size_t i = 0; i < expected.losses.size(); ++i)
    EXPECT_NEAR(expected.losses[i], found.losses[i], tolerance * std::max(1.0, std::abs(expected.losses[i]))) << "step " << i;
  ASSERT_EQ(expected.parameters.size(), found.parameters.size());
  for (size_t i = 0; i < expected.parameters.size(); ++i)
    EXPECT_LT(relative_difference(expected.parameters[i], found.parameters[i]), tolerance * 10) << "parameter " << i;
}

/// The oracle test: trains on `world` thread ranks and compares with the unsharded run.
template <class M>
void expect_training_equals_unsharded(const Training<M>& training, int world) {
  SCOPED_TRACE("world " + std::to_string(world));
  auto expected = train_unsharded(training, world);
  std::vector<std::shared_ptr<M>> models;  // built here: threads share the random state
  for (int r = 0; r < world; ++r) models.push_back(build_model(training));
  run_thread_ranks(world, [&](int r) {
    auto found = train_sharded(training, *models[static_cast<size_t>(r)]);
    expect_same_outcome(expected, found, training.tolerance);
  });
}

/// Numbers that depend on step and sample only, the same on every rank: [count, sizes...].
inline torch::Tensor samples(const Batch& batch, std::vector<int64_t> sizes, c10::ScalarType dtype = torch::kDouble) {
  int64_t numel = c10::multiply_integers(sizes);
  auto index = torch::arange(batch.first * numel, (batch.first + batch.count) * numel, torch::kDouble);
  sizes.insert(sizes.begin(), batch.count);
  return (torch::sin(index * 12.9898 + batch.step * 78.233) * 43758.5453).frac().reshape(sizes).to(dtype);
}

/// Integers below `bound` that depend on step and sample only: [count, sizes...].
inline torch::Tensor labels(const Batch& batch, std::vector<int64_t> sizes, int64_t bound) {
  return (samples(batch, std::move(sizes)).abs() * static_cast<double>(bound)).floor().to(torch::kLong).clamp(0, bound - 1);
}

}  // namespace fsdp::test
