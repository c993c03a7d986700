#pragma once
/// \file
/// What tests of costs train.

#include "support/recorded_ranks.h"
#include "support/small_net.h"

namespace fsdp::test {

constexpr int64_t kDepth = 4;  // blocks

/// Over shared memory whole parameters are there; ranks only meet, once in each scope.
inline int64_t gathers(int64_t over_network) { return test_backend() == "shm" ? 0 : over_network; }

inline std::vector<std::shared_ptr<SmallNetImpl>> nets(int world, int64_t dim = 12) {
  std::vector<std::shared_ptr<SmallNetImpl>> models;
  for (int r = 0; r < world; ++r)
    models.push_back(build_alike([&] { return std::make_shared<SmallNetImpl>(dim, kDepth); }));
  return models;
}

inline torch::Tensor forward_loss(const Group& group, SmallNetImpl& net, int step) {
  ForwardScope scope(group);
  return small_net_loss(net, {step, rank() * 2, 2});
}

}  // namespace fsdp::test
