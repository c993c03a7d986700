#pragma once
/// \file
/// What tests of costs train, and the log of what it cost.

#include "support/recording_communicator.h"
#include "support/small_net.h"

namespace fsdp::test {

constexpr int64_t kDepth = 4;  // blocks

/// A recording communicator per rank.
struct Recorded {
  explicit Recorded(int world) : logs(static_cast<size_t>(world)) {
    for (auto& log : logs) log = std::make_shared<OperationLog>();
    options.wrap = [this](std::shared_ptr<Communicator> inner, int rank) {
      return make_recording_communicator(std::move(inner), logs[static_cast<size_t>(rank)]);
    };
  }
  int64_t count(int rank, const std::string& operation) const {
    int64_t count = 0;
    for (const auto& entry : logs[static_cast<size_t>(rank)]->entries()) count += entry.operation == operation;
    return count;
  }
  std::vector<std::string> subjects(int rank, const std::string& operation) const {
    std::vector<std::string> subjects;
    for (const auto& entry : logs[static_cast<size_t>(rank)]->entries())
      if (entry.operation == operation) subjects.push_back(entry.subject);
    return subjects;
  }
  void clear(int rank) { logs[static_cast<size_t>(rank)]->clear(); }

  std::vector<std::shared_ptr<OperationLog>> logs;
  ThreadRanksOptions options;
};

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
