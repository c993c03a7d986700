#pragma once
/// \file
/// The model for tests of ranks without data.

#include <gmock/gmock.h>

#include <limits>

#include "support/small_net.h"

namespace fsdp::test {

constexpr int64_t kJoinSamples = 2;  // per rank and step

inline std::shared_ptr<SmallNetImpl> double_small_net() { return alike_small_net(torch::kDouble); }

inline const std::vector<FullyShardOptions> kJoinOptions{{},
                                                         {.strategy = Strategy::kShardGradOp},
                                                         {.strategy = Strategy::kShardOptimizer},
                                                         {.strategy = Strategy::kReplicate},
                                                         {.reshard_after_forward = Reshard::always()}};

/// One rank's net of blocks. forward(step) takes the samples of rank `of`. The gradients of a rank without data are
/// NaN, so a sum that includes them is NaN, too.
struct JoinRank {
  explicit JoinRank(const FullyShardOptions& options = {})
      : module(double_small_net()), net(*module), group(shard_blocks(net, options)) {}

  torch::Tensor forward(int step, int of = 0) const {
    const ForwardScope scope(group);
    return counted(small_net_loss(net, {step, of * kJoinSamples, kJoinSamples}));
  }
  torch::Tensor counted(const torch::Tensor& loss) const {
    return has_data ? loss : loss * std::numeric_limits<double>::quiet_NaN();
  }
  bool join(bool with_data, const std::function<void()>& step, const JoinOptions& options = {}) {
    has_data = with_data;
    return fsdp::join(group, with_data, step, options);
  }
  /// Calls join() with a divisor that counts only the ranks with data, so the other ranks do not change the gradients.
  bool join_alone(bool with_data, const std::function<void()>& step) {
    return join(with_data, step, {.divide_by_initial_world_size = false});
  }
  void expect_parameters_of(const SmallNetImpl& expected) const {
    for (size_t i = 0; i < net.parameters().size(); ++i)
      expect_close(expected.parameters()[i], full_tensor(net.parameters()[i]), 1e-10);
  }
  void expect_gradients_of(const SmallNetImpl& expected) const {
    for (size_t i = 0; i < net.parameters().size(); ++i)
      expect_close(expected.parameters()[i].grad(), full_grad(net.parameters()[i]), 1e-10);
  }

  const std::shared_ptr<SmallNetImpl> module;
  SmallNetImpl& net;
  const Group group;
  bool has_data = true;  // for the current step
};

}  // namespace fsdp::test
