// What a host sends and holds with each strategy, by the formulas of docs/strategies.md.

#include <gmock/gmock.h>

#include <array>
#include <iostream>
#include <mutex>

#include "strategies/equal_groups_net.h"

namespace fsdp::test {
namespace {

using Net = EqualGroupsNetImpl;

constexpr int64_t kHostCount = 2, kHostRanks = 2;
constexpr int kAllRanks = kHostCount * kHostRanks;

// How a column of the table shares the model out.
struct WayOnHosts {
  const char* name;
  Strategy strategy;
  bool replicates_hosts = false;  // a mesh: rows are shared out inside a host
  bool keeps_second_shards = false;
};

constexpr WayOnHosts kWaysOnHosts[] = {{"kFullShard", Strategy::kFullShard},
                                       {"kFullShard, within a host after forward", Strategy::kFullShard, false, true},
                                       {"kShardGradOp", Strategy::kShardGradOp},
                                       {"kShardOptimizer", Strategy::kShardOptimizer},
                                       {"kReplicate", Strategy::kReplicate},
                                       {"kFullShard in a host, replicas across", Strategy::kFullShard, true}};

// Of all ranks of one host in a step.
struct HostCosts {
  int64_t between_hosts = 0, inside_host = 0;  // bytes sent
  int64_t rows = 0, whole = 0, gradient = 0, optimizer = 0;
};

constexpr std::pair<const char*, int64_t HostCosts::*> kHostFigures[] = {
    {"sent to other hosts", &HostCosts::between_hosts},
    {"sent inside the host", &HostCosts::inside_host},
    {"rows", &HostCosts::rows},
    {"whole parameters, at most", &HostCosts::whole},
    {"gradients, at most", &HostCosts::gradient},
    {"optimizer state of AdamW", &HostCosts::optimizer}};

// The formulas. `gathers`: of groups by a rank, which the schedule bounds.
HostCosts expected_of_host(const WayOnHosts& way, int64_t gathers) {
  constexpr int64_t kCrossing = Net::kAllBytes * (kHostCount - 1) / kHostCount;  // once around all hosts
  const int64_t gathered = gathers * Net::kGroupBytes * (kHostCount - 1) / kHostCount;
  const int64_t shards = way.strategy == Strategy::kReplicate ? 1 : way.replicates_hosts ? kHostRanks : kAllRanks;
  HostCosts costs;
  costs.rows = kHostRanks * Net::kAllBytes / shards;
  costs.optimizer = 2 * costs.rows;
  costs.gradient = costs.rows + kHostRanks * 4 * Net::kGroupBytes;
  costs.inside_host = (kHostRanks - 1) * Net::kAllBytes;
  costs.between_hosts = gathered + kCrossing;
  costs.whole =
      way.strategy == Strategy::kFullShard && !way.keeps_second_shards ? 3 * Net::kGroupBytes : Net::kAllBytes;
  if (shards == kAllRanks) return costs;
  costs.between_hosts = 2 * kCrossing;
  costs.whole = 0;
  if (way.strategy == Strategy::kReplicate) {
    costs.inside_host += Net::kAllBytes;
    costs.gradient = 2 * costs.rows;
  }
  return costs;
}

FullyShardOptions options_of_way(const WayOnHosts& way) {
  FullyShardOptions options{.strategy = way.strategy};
  if (way.replicates_hosts) options.mesh = init_device_mesh({kHostCount, kHostRanks}, {"replicate", "shard"});
  if (way.keeps_second_shards) options.reshard_after_forward = Reshard::within(kHostRanks);
  return options;
}

// Of the first host in the second step, and how many groups were gathered.
std::pair<HostCosts, int64_t> costs_of_host(const WayOnHosts& way) {
  HostCosts costs;
  int64_t gathers = 0;
  std::mutex mutex;
  run_thread_ranks(kAllRanks,
                   [&](int rank) {
                     const auto options = options_of_way(way);
                     const auto net = build_alike([] { return std::make_shared<Net>(); });
                     for (const auto& layer : net->layers->children()) fully_shard(*layer, options);
                     const auto group = fully_shard(static_cast<torch::nn::Module&>(*net), options);
                     optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-3));
                     for (int step = 0; step < 2; ++step) {
                       optimizer.zero_grad();
                       group.reset_peak_stats();
                       const auto before = traffic();
                       const int64_t gathers_before = group.stats().gathers;
                       forward_and_backward(group, *net);
                       const auto stats = group.stats();
                       const auto moved = traffic() - before;
                       optimizer.step();
                       const std::lock_guard lock(mutex);
                       if (step == 0 || rank >= kHostRanks) continue;
                       gathers = stats.gathers - gathers_before;
                       costs.between_hosts += moved.between_hosts.sent;
                       costs.inside_host += moved.inside_host.sent;
                       costs.rows += stats.rows.peak;
                       costs.whole += stats.whole.peak;
                       costs.gradient += stats.gradient.peak;
                       costs.optimizer += group.stats().optimizer.peak;
                     }
                   },
                   {.backend = "hierarchical", .hosts = {0, 0, 1, 1}});
  return {costs, gathers};
}

TEST(StrategyCosts, OfAHostAmongSeveralAreThoseOfTheDocument) {
  std::vector<HostCosts> columns;
  for (const auto& way : kWaysOnHosts) {
    SCOPED_TRACE(way.name);
    const auto [found, gathers] = costs_of_host(way);
    columns.push_back(found);
    const bool gathers_twice = way.strategy == Strategy::kFullShard && !way.keeps_second_shards;
    EXPECT_LE(gathers, gathers_twice ? 2 * Net::kGroups - 1 : Net::kGroups);
    const auto expected = expected_of_host(way, gathers);
    for (const auto& [name, figure] : kHostFigures) {
      const bool is_bound = figure == &HostCosts::whole || figure == &HostCosts::gradient;
      if (is_bound) {
        EXPECT_LE(found.*figure, expected.*figure) << name;
        EXPECT_GE(found.*figure, expected.*figure / 2) << name;
      } else {
        EXPECT_EQ(found.*figure, expected.*figure) << name;
      }
    }
  }
  std::cout << "\nPer step and host, " << kHostCount << " hosts of " << kHostRanks << " ranks, " << Net::kGroups
            << " groups of " << Net::kGroupBytes << " bytes:\n\n| |";
  for (const auto& way : kWaysOnHosts) std::cout << ' ' << way.name << " |";
  std::cout << "\n|---|---|---|---|---|---|---|\n";
  for (const auto& [name, figure] : kHostFigures) {
    std::cout << "| " << name << " |";
    for (const auto& costs : columns) std::cout << ' ' << costs.*figure << " |";
    std::cout << '\n';
  }
}

}  // namespace
}  // namespace fsdp::test
