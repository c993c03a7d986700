#pragma once
/// \file
/// Ranks that count what they communicate and the bytes that they hold.

#include <gmock/gmock.h>

#include "api/group_view.h"
#include "runtime/param_group.h"
#include "support/recorded_ranks.h"
#include "support/small_net.h"

namespace fsdp::test {

constexpr int64_t kDepth = 4;  // number of blocks

/// Returns the number of gathers to expect. Ranks that share memory gather nothing, because they share whole
/// parameters.
inline int64_t gathers(int64_t over_network) { return test_backend() == "shm" ? 0 : over_network; }

/// Returns the number of bytes of the group's whole buffers.
inline int64_t whole_bytes(runtime::ParamGroup& group) {
  int64_t bytes = 0;
  for (const auto& flat : group.flats()) bytes += static_cast<int64_t>(flat.whole().bytes());
  return bytes;
}

struct CostOptions {
  FullyShardOptions sharding = {};
  int64_t dim = 12;
  std::string backend = {};                         // "gloo" in tests of when groups are gathered
  std::function<void(SmallNetImpl&)> prepare = {};  // called before sharding
};

/// One rank's net, in which each block is a param group, and the log of its collectives.
struct CostRank {
  CostRank(int number, Recorded& logs, const CostOptions& options)
      : rank(number), recorded(logs), module(make(options)), group(shard_blocks(net, options.sharding)) {
    clear();
  }

  SmallBlockImpl& block_at(int64_t i) const { return *net.blocks[static_cast<size_t>(i)]->as<SmallBlock>(); }
  Group group_at(int64_t i) const { return group_of(block_at(i)); }
  torch::Tensor input(int step) const { return samples({step, rank * 2, 2}, {5}, torch::kFloat); }
  torch::Tensor forward(int step) const { return own_loss(net, group, step); }
  void train(int step) const { forward(step).backward(); }

  void clear() const { recorded.clear(rank); }
  int64_t count(const std::string& operation) const { return recorded.count(rank, operation); }
  /// Returns the names of the groups that were gathered since the last call.
  std::vector<std::string> gathered() const {
    auto subjects = recorded.subjects(rank, "all_gather");
    clear();
    return subjects;
  }

  const int rank;
  Recorded& recorded;
  const std::shared_ptr<SmallNetImpl> module;
  SmallNetImpl& net = *module;
  const Group group;
  // Numbers of bytes of the whole parameters of the root's group and of a block.
  const int64_t root = whole_bytes(*param_groups(group)[0]), block = whole_bytes(*param_groups(group)[1]);

 private:
  static std::shared_ptr<SmallNetImpl> make(const CostOptions& options) {
    auto net = alike_small_net(torch::kFloat, options.dim, kDepth);
    if (options.prepare) options.prepare(*net);
    return net;
  }
};

inline void on_cost_ranks(int world, const CostOptions& options, const std::function<void(const CostRank&)>& body) {
  Recorded recorded(world);
  recorded.options.backend = options.backend;
  run_thread_ranks_with(world, recorded.options, [&](int rank) { body(CostRank(rank, recorded, options)); });
}
inline void on_cost_ranks(int world, const std::function<void(const CostRank&)>& body) {
  on_cost_ranks(world, {}, body);
}

}  // namespace fsdp::test
