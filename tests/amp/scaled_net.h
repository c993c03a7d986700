#pragma once
/// \file
/// A small model that trains with a GradScaler.

#include <fsdp/grad_scaler.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "misuse/net.h"
#include "optim/every_optimizer.h"
#include "support/small_net.h"

namespace fsdp::test {

constexpr float kInf = std::numeric_limits<float>::infinity();

inline std::shared_ptr<SmallNetImpl> float_net() {
  return build_alike([] { return std::make_shared<SmallNetImpl>(); });
}

inline std::unique_ptr<torch::optim::Optimizer> momentum(std::vector<torch::Tensor> parameters) {
  return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
}

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)>;

/// Returns one optimizer of torch::optim, which steps with gradients that were divided before, and all optimizers of
/// fsdp::optim, which divide them in the step.
inline const std::vector<MakeOptimizer>& makers() {
  static const auto all = [] {
    std::vector<MakeOptimizer> list{momentum};
    for (const auto& ours : every_optimizer())
      list.push_back([make = ours.make](auto parameters) { return make(std::move(parameters), {}).torchs; });
    return list;
  }();
  return all;
}

/// A model with its param groups and its optimizer.
struct Scaled {
  std::shared_ptr<SmallNetImpl> net = float_net();
  Group group;
  std::unique_ptr<torch::optim::Optimizer> optimizer;

  explicit Scaled(const FullyShardOptions& options = {}, const MakeOptimizer& make = momentum)
      : group(shard_blocks(*net, options)), optimizer(make(net->parameters())) {}

  torch::Tensor forward(int step) {
    optimizer->zero_grad();
    ForwardScope scope(group);
    return small_net_loss(*net, {step, rank() * 2, 2});
  }
  void backward(GradScaler& scaler, int step) { scaler.scale(forward(step)).backward(); }
  /// Runs a whole iteration, with the scaler or without one.
  void iterate(GradScaler& scaler, int step) {
    backward(scaler, step);
    this->step(scaler);
  }
  void iterate(int step) {
    forward(step).backward();
    optimizer->step();
  }
  void step(GradScaler& scaler) {
    scaler.step(*optimizer);
    scaler.update();
  }
  /// Writes `value` into a row of a gradient on rank `on_rank`.
  void plant(float value, int on_rank) {
    for (const auto& parameter : net->parameters())
      if (rank() == on_rank && parameter.grad().numel() > 0) {
        parameter.grad().mutable_data_ptr<float>()[parameter.grad().numel() - 1] = value;
        return;
      }
  }
  std::vector<torch::Tensor> values() const {
    std::vector<torch::Tensor> all;
    for (const auto& parameter : net->parameters()) all.push_back(full_tensor(parameter));
    return all;
  }
};

inline bool are_equal(const std::vector<torch::Tensor>& left, const std::vector<torch::Tensor>& right) {
  return std::ranges::equal(left, right,
                            [](const torch::Tensor& a, const torch::Tensor& b) { return torch::equal(a, b); });
}

/// Returns a float parameter outside any model. Each rank has its own.
inline torch::Tensor plain_parameter() { return torch::ones({2}, torch::requires_grad()); }

}  // namespace fsdp::test
