#pragma once
/// \file
/// Functions that the tests of strategies share: shapes of meshes, steps, and the errors of steps that fail.

#include <gmock/gmock.h>

#include <functional>
#include <string>
#include <vector>

#include "support/axes.h"
#include "support/recorded_ranks.h"
#include "support/small_net.h"

namespace fsdp::test::strategies {

/// Returns the message of the `Kind` of error that `act` throws, or "no error". Other exceptions pass through.
template <class Kind = Error, class Act>
std::string message_of(const Act& act) {
  try {
    act();
  } catch (const Kind& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

inline constexpr Strategy kStrategies[] = {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kShardOptimizer,
                                           Strategy::kReplicate};

/// Sizes of the axes "replicate" and "shard". An empty shape stands for no mesh.
using Shape = std::vector<int>;
inline const std::vector<Shape> kShapes{{}, {2, 2}, {1, 3}, {3, 1}};

inline int ranks_of(const Shape& shape) { return shape.empty() ? 3 : shape[0] * shape[1]; }
inline std::string text_of(Strategy strategy, const Shape& shape) {
  return c10::str(strategy, " over ", shape.empty() ? "3 ranks" : c10::Join(" x ", shape));
}

/// Returns options with a strategy and a mesh. Collective, because it makes the mesh.
inline FullyShardOptions options_for(Strategy strategy, const Shape& shape, FullyShardOptions options = {}) {
  options.strategy = strategy;
  if (!shape.empty()) options.mesh = init_device_mesh(shape, {"replicate", "shard"});
  return options;
}

inline std::string text_of(Axes axes) { return c10::str(axes.shards, " x ", axes.replicas); }

/// Returns `placement` with a log of its collectives on all axes. `placement` must outlive the result.
inline runtime::Placement recorded(const runtime::Placement& placement, const std::shared_ptr<OperationLog>& log) {
  runtime::Placement::Axes replicate;
  for (const auto& axis : placement.replicate()) replicate.push_back(test::recorded(*axis, log));
  return {default_process_group(), test::recorded(placement.shard(), log), replicate};
}

struct RecordedAxes {
  explicit RecordedAxes(Axes axes) : plain(placement_over(axes)) {}
  std::shared_ptr<OperationLog> log = std::make_shared<OperationLog>();
  runtime::Placement plain, placement = recorded(plain, log);
};

/// Returns the logged entries that reduce gradients.
inline std::vector<OperationLog::Entry> reductions_in(const OperationLog& log) {
  auto entries = log.entries();
  std::erase_if(entries, [](const auto& e) { return e.lane != "reductions" && e.lane != "further steps"; });
  return entries;
}

inline std::shared_ptr<SmallNetImpl> make_small_net(int64_t dim = 11, int64_t depth = 3) {
  return build_alike([=] { return std::make_shared<SmallNetImpl>(dim, depth); });
}

/// Runs forward in a scope, and backward after it.
template <class Loss>
void backward(const Group& group, const Loss& loss) {
  torch::Tensor value;
  {
    const ForwardScope scope(group);
    value = loss();
  }
  value.backward();
}

/// Returns the loss of this rank's two samples of a step.
inline torch::Tensor loss_of_rank(const Group& group, SmallNetImpl& net, int step) {
  const ForwardScope scope(group);
  return small_net_loss(net, {step, rank() * 2, 2});
}

/// Expects that the gradients of parameters equal those of the unsharded model.
inline void expect_gradients_equal(const torch::nn::Module& oracle, const torch::nn::Module& net, double tolerance) {
  for (size_t i = 0; i < net.parameters().size(); ++i)
    EXPECT_LT(relative_difference(oracle.parameters()[i].grad(), full_grad(net.parameters()[i])), tolerance) << i;
}

struct OneWeight : torch::nn::Module {
  torch::Tensor weight = register_parameter("weight", torch::zeros({7, 3}));
};

/// Returns a gradient with values over many orders of magnitude, so that the order of addition shows in the last bits.
inline torch::Tensor gradient_of(int rank, int micro = 0) {
  return (samples({micro, rank, 1}, {7, 3}) * torch::pow(10.0, 4 * samples({micro + 9, rank, 1}, {7, 3})))
      .squeeze(0)
      .to(torch::kFloat);
}

inline void backward_of(const Group& group, const OneWeight& net, const torch::Tensor& gradient) {
  backward(group, [&] { return (net.weight * gradient).sum(); });
}

}  // namespace fsdp::test::strategies
