#pragma once
/// \file
/// What tests of ranks without data train.

#include "support/small_net.h"

namespace fsdp::test {

constexpr int64_t kJoinSamples = 2;  // of a rank in a step

inline std::shared_ptr<SmallNetImpl> double_small_net() {
  auto net = build_alike([] { return std::make_shared<SmallNetImpl>(); });
  net->to(torch::kDouble);
  return net;
}

inline const std::vector<FullyShardOptions> kJoinOptions{{},
                                                         {.strategy = Strategy::kShardGradOp},
                                                         {.strategy = Strategy::kShardOptimizer},
                                                         {.strategy = Strategy::kReplicate},
                                                         {.reshard_after_forward = Reshard::always()}};

}  // namespace fsdp::test
