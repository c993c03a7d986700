#pragma once
/// \file
/// Describes what a model does as code that runs both unsharded and on each rank.

#include <gmock/gmock.h>

#include "support/oracle.h"

namespace fsdp::test {

namespace nn = torch::nn;
using torch::Tensor;

/// A program of a model of any type. All tests of the zoo share this one instance of the oracle.
using AnyProgram = Program<nn::Module>;
using Shard = std::function<void(nn::Module&, const FullyShardOptions&)>;
template <class M>
using Run = std::function<Values(M&, const Role&)>;

/// Returns a program for two ranks with default options, and for three ranks that free whole parameters after every
/// forward.
template <class M>
AnyProgram program_of(Run<M> run, Shard shard = shard_children_then_root) {
  AnyProgram program;
  if constexpr (std::is_default_constructible_v<M>) program.build = [] { return std::make_shared<M>(); };
  program.shard = std::move(shard);
  program.run = [run = std::move(run)](nn::Module& model, const Role& role) {
    return run(dynamic_cast<M&>(model), role);
  };
  program.smallest_world = 2;
  return program;
}

/// Expects that `run` gives the same result sharded by `shard` as unsharded.
template <class M>
void expect_same_sharded(Run<M> run, Shard shard = shard_children_then_root) {
  expect_equals_unsharded(program_of<M>(std::move(run), std::move(shard)));
}

/// A row of a table of programs. Their models consist of different parts, so worlds of up to three ranks suffice.
struct ZooCase {
  const char* name;
  AnyProgram program;
};

class ZooTable : public testing::TestWithParam<ZooCase> {
 protected:
  static void expect_same() {
    auto program = GetParam().program;
    program.smallest_world = 3;
    expect_equals_unsharded(program);
  }
};

inline std::string name_of_case(const testing::TestParamInfo<ZooCase>& info) { return info.param.name; }

/// Returns the distance between targets and the net's outputs for inputs of 4 numbers per sample.
template <class M>
Tensor loss_of(M& net, const Batch& batch) {
  return distance_from_targets(net.forward(samples(batch, {4})), batch);
}

/// Returns the loss of one step's batch, and runs its forward in a scope.
template <class M>
Tensor scoped_loss(M& net, const Role& role, int step = 0) {
  return role.whole(net, [&] { return loss_of(net, role.batch(step)); });
}

/// Runs backward from `loss`, and returns its value. The gradients stay.
inline Tensor backward_of(const Tensor& loss) {
  loss.backward();
  return loss.detach();
}

template <class M>
Tensor learn(M& net, const Role& role, int step = 0) {
  return backward_of(scoped_loss(net, role, step));
}

/// Steps `optimizer` with the gradients that `backward(step)` leaves, and returns the values of all steps in order.
template <class Optimizer, class Backward>
Values descend_by(Optimizer& optimizer, const Backward& backward, int steps = 3) {
  Values values;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    values.push_back(backward(step));
    optimizer.step();
  }
  return values;
}

template <class Backward>
Values descend(const std::vector<Tensor>& parameters, const Backward& backward, int steps = 3) {
  auto optimizer = sgd(parameters);
  return descend_by(optimizer, backward, steps);
}

/// These functions return programs that take steps of SGD, with the gradients that `backward` leaves, or on `loss`.
template <class M>
Run<M> stepping(std::function<Tensor(M&, const Role&, int step)> backward, int steps = 3) {
  return [=](M& net, const Role& role) {
    return descend(net.parameters(), [&](int step) { return backward(net, role, step); }, steps);
  };
}
template <class M>
Run<M> fitting(std::function<Tensor(M&, const Batch&)> loss, int steps = 3) {
  return [=](M& net, const Role& role) { return train(net, role, loss, steps); };
}

/// Returns a program that takes a few steps of SGD on `loss_of`.
template <class M>
AnyProgram trained(Shard shard = shard_children_then_root) {
  return program_of<M>(fitting<M>(loss_of<M>), std::move(shard));
}

/// Calls `act` for each rank whose part `role` plays, with that rank's part of the batch and of the gradient. A sharded
/// run calls it for this rank, the unsharded run for all ranks.
template <class Act>
void for_each_rank_of(const Role& role, const Act& act) {
  const int first = role.is_sharded() ? role.rank : 0, count = role.is_sharded() ? 1 : role.world;
  for (int rank = first; rank < first + count; ++rank) act(Role{role.world, rank, role.samples_per_rank}, 1.0 / count);
}

inline Values gradients_of(const nn::Module& net, const Role& role) {
  Values gradients;
  for (const auto& parameter : net.parameters()) gradients.push_back(role.gradient(parameter));
  return gradients;
}

inline Values copies_of(const Values& tensors) {
  Values copies;
  for (const auto& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

inline void append(Values& values, const Values& more) { values.insert(values.end(), more.begin(), more.end()); }

inline void set_trainable(nn::Module& module, bool trainable) {
  for (auto& parameter : module.parameters()) parameter.set_requires_grad(trainable);
}

struct ThreeLayers : nn::Module {
  nn::Linear in = register_module("in", nn::Linear(4, 6)), middle = register_module("middle", nn::Linear(6, 5));
  nn::Linear out = register_module("out", nn::Linear(5, 3));
  Tensor forward(const Tensor& x) { return out->forward(torch::tanh(middle->forward(torch::tanh(in->forward(x))))); }
};

/// Two layers, another one that is not used, and a scalar.
struct ScaledNet : nn::Module {
  nn::Linear in = register_module("in", nn::Linear(4, 6)), unused = register_module("unused", nn::Linear(3, 3));
  nn::Linear out = register_module("out", nn::Linear(6, 3));
  Tensor scale = register_parameter("scale", torch::tensor(1.5));
  Tensor forward(const Tensor& x) { return out->forward(torch::sigmoid(in->forward(x))) * scale; }
};

/// Makes a param group of the first layer; all other parameters belong to the root's group.
inline void shard_first_then_root(nn::Module& net, const FullyShardOptions& options) {
  fully_shard(*dynamic_cast<ScaledNet&>(net).in, options);
  fully_shard(net, options);
}

}  // namespace fsdp::test
