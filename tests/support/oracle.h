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
#include <mutex>
#include <string>
#include <vector>

#include "runtime/compat.h"
#include "support/thread_ranks.h"

namespace fsdp::test {

/// Returns the world sizes to test, none above `largest`: 1, 2 and 3, and also 4 and 8 in the nightly run, which sets
/// FSDP_TEST_MAX_WORLD. A test that needs a larger world names that world itself.
inline std::vector<int> worlds_up_to(int largest) {
  const char* limit = std::getenv("FSDP_TEST_MAX_WORLD");
  largest = std::min(largest, limit == nullptr ? 3 : std::atoi(limit));
  std::vector<int> worlds;
  for (int world : {1, 2, 3, 4, 8})
    if (world <= largest) worlds.push_back(world);
  return worlds;
}

/// Opens a forward scope of `group`, and returns what `body` returns.
template <class F>
auto in_scope(const Group& group, F&& body) {
  const ForwardScope scope(group);
  return body();
}

/// Returns the largest difference between elements of two tensors, divided by the largest magnitude in the first.
inline double relative_difference(const torch::Tensor& expected, const torch::Tensor& found) {
  if (expected.sizes() != found.sizes()) return std::numeric_limits<double>::infinity();
  if (expected.numel() == 0) return 0.0;
  double difference = (expected - found).abs().max().template item<double>();
  return difference / std::max(1e-30, expected.abs().max().template item<double>());
}

/// Returns a copy of rows that operators treat as an ordinary tensor.
inline torch::Tensor plain_copy(const torch::Tensor& rows) {
  const runtime::OwnOperators unmarked;
  return rows.detach().clone();
}

/// The samples `first` to `first + count` of step `step` of a training run.
struct Batch {
  int step = 0;
  int64_t first = 0;
  int64_t count = 0;
};

/// A model and the way to train it. `M` is a torch::nn::Module.
template <class M>
struct Training {
  /// Makes the model. It is called in the main thread, after torch::manual_seed with a fixed seed.
  std::function<std::shared_ptr<M>()> build;
  /// Shards the model bottom-up, and returns a group that covers all of its parameters.
  std::function<Group(M&)> shard;
  /// Returns the mean loss over the batch.
  std::function<torch::Tensor(M&, const Batch&)> loss;
  int steps = 4;
  int64_t samples_per_rank = 2;
  double tolerance = 1e-10;
  c10::ScalarType dtype = torch::kDouble;
  /// Norm to which gradients are clipped; nullopt does not clip.
  std::optional<double> max_norm = std::nullopt;
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)> optimizer = [](auto parameters) {
    return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-2));
  };
};

/// Sets fp32 for the training, with a tolerance for its rounding errors.
template <class M>
void in_float32(Training<M>& training) {
  training.dtype = torch::kFloat;
  training.tolerance = 5e-6;
  // Adam's first steps divide by the root of tiny numbers and so magnify rounding errors; SGD does not.
  training.optimizer = [](auto parameters) {
    return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
  };
}

inline std::mutex build_mutex;

/// Returns what `build` makes, with the same random numbers on every rank. A lock makes rank threads take turns,
/// because they share the random generator.
template <class Build>
auto build_alike(const Build& build) {
  std::lock_guard lock(build_mutex);
  torch::manual_seed(7);
  return build();
}

/// The losses and parameters after a training run.
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

/// Trains the unsharded model on the joined batch of `world` ranks.
template <class M>
Outcome train_unsharded(const Training<M>& training, int world) {
  auto model = build_model(training);
  auto optimizer = training.optimizer(model->parameters());
  Outcome outcome;
  for (int step = 0; step < training.steps; ++step) {
    optimizer->zero_grad();
    auto loss = training.loss(*model, {step, 0, world * training.samples_per_rank});
    loss.backward();
    if (training.max_norm) torch::nn::utils::clip_grad_norm_(model->parameters(), *training.max_norm);
    optimizer->step();
    outcome.losses.push_back(loss.template item<double>());
  }
  for (const auto& parameter : model->parameters()) outcome.parameters.push_back(parameter.detach().clone());
  return outcome;
}

/// Trains the sharded model on this rank's part of each batch, with one forward scope per step. Collective.
template <class M>
Outcome train_sharded(const Training<M>& training, M& model) {
  auto group = training.shard(model);
  auto optimizer = training.optimizer(model.parameters());
  Outcome outcome;
  int64_t count = training.samples_per_rank;
  for (int step = 0; step < training.steps; ++step) {
    optimizer->zero_grad();
    const auto loss = in_scope(group, [&] { return training.loss(model, {step, rank() * count, count}); });
    loss.backward();
    if (training.max_norm) clip_grad_norm_(group, *training.max_norm);
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
    EXPECT_NEAR(expected.losses[i], found.losses[i], tolerance * std::abs(expected.losses[i])) << "step " << i;
  ASSERT_EQ(expected.parameters.size(), found.parameters.size());
  for (size_t i = 0; i < expected.parameters.size(); ++i)
    EXPECT_LT(relative_difference(expected.parameters[i], found.parameters[i]), tolerance) << "parameter " << i;
}

/// Runs `act(model, rank)` on thread ranks. This function builds the models, one for each rank, before the threads
/// start, because threads share the random state. Each rank's thread destroys its model and group.
template <class Build, class Act>
void run_with_models(int world, const Build& build, const Act& act, const ThreadRanksOptions& options = {}) {
  std::vector<decltype(build())> models;
  for (int rank = 0; rank < world; ++rank) models.push_back(build());
  const auto run = [&](int rank) {
    const auto model = std::move(models[static_cast<size_t>(rank)]);
    act(*model, rank);
  };
  run_thread_ranks(world, run, options);
}

/// Trains on `world` thread ranks, and compares the outcome with that of the unsharded run.
template <class M>
void expect_training_equals_unsharded(const Training<M>& training, int world) {
  SCOPED_TRACE("world " + std::to_string(world));
  const auto expected = train_unsharded(training, world);
  const auto build = [&] { return build_model(training); };
  run_with_models(world, build, [&](M& model, int) {
    expect_same_outcome(expected, train_sharded(training, model), training.tolerance);
  });
}

/// Trains on `world` thread ranks, and returns the outcome of rank 0.
template <class M>
Outcome train_on_thread_ranks(const Training<M>& training, int world, const ThreadRanksOptions& options = {}) {
  Outcome outcome;
  const auto build = [&] { return build_model(training); };
  const auto train = [&](M& model, int rank) {
    auto found = train_sharded(training, model);
    if (rank == 0) outcome = std::move(found);
  };
  run_with_models(world, build, train, options);
  return outcome;
}

inline void expect_same_bits(const Outcome& expected, const Outcome& found) {
  EXPECT_EQ(expected.losses, found.losses);
  ASSERT_EQ(expected.parameters.size(), found.parameters.size());
  for (size_t i = 0; i < expected.parameters.size(); ++i)
    EXPECT_TRUE(torch::equal(expected.parameters[i], found.parameters[i])) << "parameter " << i;
}

/// Says who runs a program: the oracle, which trains the unsharded model on the joined batch of all ranks, or one rank,
/// which trains on its part.
struct Role {
  int world = 1;
  int rank = -1;  // -1 for the oracle
  int64_t samples_per_rank = 2;

  bool is_sharded() const { return rank >= 0; }
  Batch batch(int step) const {
    return is_sharded() ? Batch{step, rank * samples_per_rank, samples_per_rank}
                        : Batch{step, 0, world * samples_per_rank};
  }
  /// Calls `body` in a forward scope of `module`, which must have a param group of its own. The oracle calls it without
  /// a scope.
  template <class F>
  decltype(auto) whole(const torch::nn::Module& module, F&& body) const {
    if (!is_sharded()) return body();
    ForwardScope scope(group_of(module));
    return body();
  }
  /// Returns the whole gradient, or an undefined tensor if the parameter has none. Collective.
  torch::Tensor gradient(const torch::Tensor& parameter) const {
    if (is_sharded()) return full_grad(parameter);
    return parameter.grad().defined() ? parameter.grad().detach().clone() : torch::Tensor();
  }
  /// Returns zeros with one place per rank, and this rank's value times `world` in its own place. The mean of these
  /// tensors over the ranks is the stack of all values, which the unsharded run stacks itself.
  torch::Tensor in_own_place(const torch::Tensor& value) const {
    auto sizes = value.sizes().vec();
    sizes.insert(sizes.begin(), world);
    auto places = torch::zeros(sizes, torch::kDouble);
    places.select(0, rank).copy_(value.detach().to(torch::kDouble) * world);
    return places;
  }
};

using Values = std::vector<torch::Tensor>;

/// A model and a program that trains it, for tests that need more than a loss and an optimizer. `M` is a module of
/// torch::nn or of TorchScript.
template <class M>
struct Program {
  std::function<std::shared_ptr<M>()> build;
  /// Shards the model bottom-up.
  std::function<void(M&, const FullyShardOptions&)> shard;
  /// Trains, and returns values whose mean over the ranks must equal the oracle's value, e.g. mean losses.
  std::function<Values(M&, const Role&)> run;
  double tolerance = 1e-10;
  c10::ScalarType dtype = torch::kDouble;
  int64_t samples_per_rank = 2;
  int smallest_world = 1;
  /// Largest world size of the nightly run.
  int largest_world = 4;
};

template <class M>
std::vector<torch::Tensor> parameters_of(const M& model) {
  std::vector<torch::Tensor> parameters;
  for (const auto& parameter : model.parameters()) parameters.push_back(parameter);
  return parameters;
}

inline torch::Tensor mean_over_ranks(const torch::Tensor& value) {
  if (!value.defined()) return {};
  auto sum = value.detach().to(torch::kDouble, /*non_blocking=*/false, /*copy=*/true).contiguous();
  default_process_group()->communicator().all_reduce(sum, ReduceOp::kSum, {"mean over ranks", {}})->wait();
  return sum / world_size();
}

inline void expect_close(const torch::Tensor& expected, const torch::Tensor& found, double tolerance) {
  ASSERT_EQ(expected.defined(), found.defined());
  if (!expected.defined()) return;
  auto wanted = expected.detach().to(torch::kDouble);
  EXPECT_LT(relative_difference(wanted, found.detach().to(torch::kDouble)), tolerance)
      << "expected\n"
      << wanted.flatten().narrow(0, 0, std::min<int64_t>(8, wanted.numel())) << "\nfound\n"
      << found.flatten().narrow(0, 0, std::min<int64_t>(8, found.numel()));
}

/// Runs the program unsharded and on thread ranks, and compares the returned values and all parameters.
template <class M>
void expect_equals_unsharded(const Program<M>& program, const std::vector<int>& worlds,
                             const FullyShardOptions& options = {}) {
  auto build = [&] {
    torch::manual_seed(7);
    auto model = program.build();
    model->to(program.dtype);
    return model;
  };
  for (int world : worlds) {
    auto oracle = build();
    auto expected = program.run(*oracle, Role{world, -1, program.samples_per_rank});
    auto expected_parameters = parameters_of(*oracle);
    run_with_models(world, build, [&](M& model, int r) {
      SCOPED_TRACE("rank " + std::to_string(r) + " of " + std::to_string(world));
      program.shard(model, options);
      auto found = program.run(model, Role{world, r, program.samples_per_rank});
      ASSERT_EQ(expected.size(), found.size());
      for (size_t i = 0; i < found.size(); ++i) {
        SCOPED_TRACE("value " + std::to_string(i));
        expect_close(expected[i], mean_over_ranks(found[i]), program.tolerance);
      }
      auto found_parameters = parameters_of(model);
      ASSERT_EQ(expected_parameters.size(), found_parameters.size());
      for (size_t i = 0; i < found_parameters.size(); ++i) {
        SCOPED_TRACE("parameter " + std::to_string(i));
        expect_close(expected_parameters[i], full_tensor(found_parameters[i]), program.tolerance);
      }
    });
  }
}

/// Compares worlds 1, 2 and those from 4 on with default options, and world 3 with whole parameters freed after every
/// forward, the root group's too. If no world as large as 3 is tested, the largest one takes its place.
template <class M>
void expect_equals_unsharded(const Program<M>& program) {
  const auto worlds = worlds_up_to(program.largest_world);
  const int freed = std::min(3, worlds.back());
  for (int world : worlds) {
    if (world < std::min(program.smallest_world, freed)) continue;
    FullyShardOptions options;
    if (world == freed) options.reshard_after_forward = Reshard::always();
    expect_equals_unsharded(program, {world}, options);
  }
}

/// Makes a param group of each child that has parameters; the root's own parameters belong to the root's group.
inline void shard_children_then_root(torch::nn::Module& model, const FullyShardOptions& options) {
  for (const auto& child : model.children())
    if (!child->parameters().empty()) fully_shard(*child, options);
  fully_shard(model, options);
}

inline void shard_as_one_group(torch::nn::Module& model, const FullyShardOptions& options) {
  fully_shard(model, options);
}

/// Returns numbers of shape [count, sizes...] that depend only on step and sample, so all ranks compute the same ones.
inline torch::Tensor samples(const Batch& batch, std::vector<int64_t> sizes, c10::ScalarType dtype = torch::kDouble) {
  int64_t numel = c10::multiply_integers(sizes);
  auto index = torch::arange(batch.first * numel, (batch.first + batch.count) * numel, torch::kDouble);
  sizes.insert(sizes.begin(), batch.count);
  return (torch::sin(index * 12.9898 + batch.step * 78.233) * 43758.5453).frac().reshape(sizes).to(dtype);
}

/// Returns integers of shape [count, sizes...] below `bound` that depend only on step and sample.
inline torch::Tensor labels(const Batch& batch, std::vector<int64_t> sizes, int64_t bound) {
  return (samples(batch, std::move(sizes)).abs() * static_cast<double>(bound))
      .floor()
      .to(torch::kLong)
      .clamp(0, bound - 1);
}

/// Returns SGD with momentum. Unlike Adam's, its result depends on the scale of the gradients.
inline torch::optim::SGD sgd(const std::vector<torch::Tensor>& parameters, double learning_rate = 0.05) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(learning_rate).momentum(0.9));
}

/// Takes `steps` steps of SGD on the mean of `loss`, and returns the losses.
template <class M, class Loss>
Values train(M& model, const Role& role, const Loss& loss, int steps = 3) {
  auto optimizer = sgd(model.parameters());
  Values losses;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    auto value = role.whole(model, [&]() -> torch::Tensor { return loss(model, role.batch(step)); });
    value.backward();
    optimizer.step();
    losses.push_back(value.detach());
  }
  return losses;
}

/// Returns the mean squared distance between an output of shape [count, ...] and targets that depend only on step and
/// sample.
inline torch::Tensor distance_from_targets(const torch::Tensor& output, const Batch& batch) {
  return torch::mse_loss(output, samples({batch.step + 100, batch.first, batch.count}, output.sizes().slice(1).vec(),
                                         output.scalar_type()));
}

/// Returns a program that fits the output of `forward`, of shape [count, ...], to the targets of distance_from_targets.
template <class M, class Forward>
Program<M> regression(std::function<std::shared_ptr<M>()> build, Forward forward) {
  Program<M> program;
  program.build = std::move(build);
  program.shard = shard_children_then_root;
  program.run = [forward](M& model, const Role& role) {
    return train(model, role,
                 [&](M& m, const Batch& batch) { return distance_from_targets(forward(m, batch), batch); });
  };
  return program;
}

}  // namespace fsdp::test
