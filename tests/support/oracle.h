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

/// The worlds to test, none above `largest`: 1, 2 and 3, and also 4 and 8 in the nightly run, which sets
/// FSDP_TEST_MAX_WORLD. A test of a rule that needs a larger world names that world itself.
inline std::vector<int> worlds_up_to(int largest) {
  const char* limit = std::getenv("FSDP_TEST_MAX_WORLD");
  largest = std::min(largest, limit == nullptr ? 3 : std::atoi(limit));
  std::vector<int> worlds;
  for (int world : {1, 2, 3, 4, 8})
    if (world <= largest) worlds.push_back(world);
  return worlds;
}

/// Returns what `body` returns in a forward scope of `group`.
template <class F>
auto in_scope(const Group& group, F&& body) {
  const ForwardScope scope(group);
  return body();
}

/// The largest difference of two tensors relative to the largest magnitude of the first.
inline double relative_difference(const torch::Tensor& expected, const torch::Tensor& found) {
  if (expected.sizes() != found.sizes()) return std::numeric_limits<double>::infinity();
  if (expected.numel() == 0) return 0.0;
  double difference = (expected - found).abs().max().template item<double>();
  return difference / std::max(1e-30, expected.abs().max().template item<double>());
}

/// A copy of rows that operators take for an ordinary tensor.
inline torch::Tensor plain_copy(const torch::Tensor& rows) {
  const runtime::OwnOperators unmarked;
  return rows.detach().clone();
}

/// Samples `first` to `first + count` of step `step` of a training run.
struct Batch {
  int step = 0;
  int64_t first = 0;
  int64_t count = 0;
};

/// A model and how to train it. `M` is a torch::nn::Module.
template <class M>
struct Training {
  /// Makes the model; called after torch::manual_seed with one seed, in the main thread only.
  std::function<std::shared_ptr<M>()> build;
  /// Shards the model bottom-up; the group that it returns covers everything.
  std::function<Group(M&)> shard;
  /// The mean loss over the batch.
  std::function<torch::Tensor(M&, const Batch&)> loss;
  int steps = 4;
  int64_t samples_per_rank = 2;
  double tolerance = 1e-10;
  c10::ScalarType dtype = torch::kDouble;
  /// Gradients are clipped to this norm.
  std::optional<double> max_norm = std::nullopt;
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)> optimizer = [](auto parameters) {
    return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-2));
  };
};

/// Trains in fp32, with a tolerance for its rounding.
template <class M>
void in_float32(Training<M>& training) {
  training.dtype = torch::kFloat;
  training.tolerance = 5e-6;
  // SGD, because Adam's first steps divide by the root of tiny numbers and magnify rounding errors.
  training.optimizer = [](auto parameters) {
    return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
  };
}

inline std::mutex build_mutex;

/// Returns what `build` makes, with the same random numbers on every rank. Ranks that are threads share the generator.
template <class Build>
auto build_alike(const Build& build) {
  std::lock_guard lock(build_mutex);
  torch::manual_seed(7);
  return build();
}

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
    if (training.max_norm) torch::nn::utils::clip_grad_norm_(model->parameters(), *training.max_norm);
    optimizer->step();
    outcome.losses.push_back(loss.template item<double>());
  }
  for (const auto& parameter : model->parameters()) outcome.parameters.push_back(parameter.detach().clone());
  return outcome;
}

/// Trains on one rank's share, with a forward scope per step. Collective.
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

/// Runs `act(model, rank)` on thread ranks. The models are built here, one for each rank, because threads share the
/// random state. Each model and its group are destroyed in the rank's thread.
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

/// The oracle test: trains on `world` thread ranks and compares with the unsharded run.
template <class M>
void expect_training_equals_unsharded(const Training<M>& training, int world) {
  SCOPED_TRACE("world " + std::to_string(world));
  const auto expected = train_unsharded(training, world);
  const auto build = [&] { return build_model(training); };
  run_with_models(world, build, [&](M& model, int) {
    expect_same_outcome(expected, train_sharded(training, model), training.tolerance);
  });
}

/// What training leaves on rank 0 of `world` thread ranks.
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

/// Who runs a program: the oracle, unsharded on the joined batch of all ranks, or one rank on its share.
struct Role {
  int world = 1;
  int rank = -1;  // -1 for the oracle
  int64_t samples_per_rank = 2;

  bool is_sharded() const { return rank >= 0; }
  Batch batch(int step) const {
    return is_sharded() ? Batch{step, rank * samples_per_rank, samples_per_rank}
                        : Batch{step, 0, world * samples_per_rank};
  }
  /// Calls `body` in a forward scope of `module`, which has a group of its own. The unsharded run just calls it.
  template <class F>
  decltype(auto) whole(const torch::nn::Module& module, F&& body) const {
    if (!is_sharded()) return body();
    ForwardScope scope(group_of(module));
    return body();
  }
  /// The whole gradient; undefined if there is none. Collective.
  torch::Tensor gradient(const torch::Tensor& parameter) const {
    if (is_sharded()) return full_grad(parameter);
    return parameter.grad().defined() ? parameter.grad().detach().clone() : torch::Tensor();
  }
  /// Puts this rank's value in its own place of a stack, so that the mean over the ranks is the stack of all values.
  /// The unsharded run stacks the values itself.
  torch::Tensor in_own_place(const torch::Tensor& value) const {
    auto sizes = value.sizes().vec();
    sizes.insert(sizes.begin(), world);
    auto places = torch::zeros(sizes, torch::kDouble);
    places.select(0, rank).copy_(value.detach().to(torch::kDouble) * world);
    return places;
  }
};

using Values = std::vector<torch::Tensor>;

/// A model and a program that trains it, for tests that need more than a loss and a step. `M`: torch::nn or TorchScript
/// module.
template <class M>
struct Program {
  std::function<std::shared_ptr<M>()> build;
  /// Shards the model bottom-up.
  std::function<void(M&, const FullyShardOptions&)> shard;
  /// Trains, and returns values whose mean over the ranks is the unsharded run's value, e.g. mean losses.
  std::function<Values(M&, const Role&)> run;
  double tolerance = 1e-10;
  c10::ScalarType dtype = torch::kDouble;
  int64_t samples_per_rank = 2;
  int smallest_world = 1;
  /// The largest world of the nightly run.
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

/// Runs the program unsharded and on thread ranks, and compares its values, then every parameter.
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

/// Worlds 1, 2, 4 and more with default groups, and world 3 with whole parameters freed after every forward, those of
/// the outermost group too. If fewer worlds are tested, the largest one takes the place of 3.
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

/// Makes a group of each child with parameters of its own; the rest belongs to the root's group.
inline void shard_children_then_root(torch::nn::Module& model, const FullyShardOptions& options) {
  for (const auto& child : model.children())
    if (!child->parameters().empty()) fully_shard(*child, options);
  fully_shard(model, options);
}

inline void shard_as_one_group(torch::nn::Module& model, const FullyShardOptions& options) {
  fully_shard(model, options);
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
  return (samples(batch, std::move(sizes)).abs() * static_cast<double>(bound))
      .floor()
      .to(torch::kLong)
      .clamp(0, bound - 1);
}

/// SGD, because its result depends on the size of gradients (Adam's does not).
inline torch::optim::SGD sgd(const std::vector<torch::Tensor>& parameters, double learning_rate = 0.05) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(learning_rate).momentum(0.9));
}

/// Takes steps of SGD on the mean of `loss`, and returns the losses.
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

/// The mean squared distance of an output [count, ...] from numbers that depend on step and sample only.
inline torch::Tensor distance_from_targets(const torch::Tensor& output, const Batch& batch) {
  return torch::mse_loss(output, samples({batch.step + 100, batch.first, batch.count}, output.sizes().slice(1).vec(),
                                         output.scalar_type()));
}

/// A program that fits the output of `forward`, [count, ...], to the targets of distance_from_targets.
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
