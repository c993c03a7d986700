// What each strategy moves and holds, by the formulas of docs/strategies.md.

#include <gmock/gmock.h>

#include <iomanip>
#include <iostream>

#include "api/placement_choice.h"
#include "api/shard_over.h"
#include "support/recorded_ranks.h"
#include "strategies/equal_groups_net.h"

namespace fsdp::test {
namespace {

constexpr int64_t kGroups = EqualGroupsNetImpl::kGroups, kGroupBytes = EqualGroupsNetImpl::kGroupBytes,
                  kAllBytes = EqualGroupsNetImpl::kAllBytes;

struct Costs {
  int64_t gathers = 0, reduce_scatters = 0, all_reduces = 0;
  int64_t gathered = 0, reduce_scattered = 0, all_reduced = 0;  // bytes that a rank sends
  int64_t rows = 0, whole = 0, whole_while_written = 0, gradient = 0, optimizer = 0;
};

// The formulas; gathers, whole parameters and gradients at most.
Costs expected_of(Strategy strategy, int64_t shards, const std::vector<int64_t>& replicas) {
  const bool shards_any = shards > 1;
  Costs costs;
  costs.gathers = !shards_any ? 0 : strategy == Strategy::kFullShard ? 2 * kGroups - 1 : kGroups;
  costs.reduce_scatters = shards_any ? kGroups : 0;
  costs.gathered = costs.gathers * kGroupBytes * (shards - 1) / shards;
  costs.reduce_scattered = kAllBytes * (shards - 1) / shards;
  for (const auto ranks : replicas) {
    costs.all_reduces += kGroups;
    costs.all_reduced += 2 * kAllBytes / shards * (ranks - 1) / ranks;
  }
  costs.rows = kAllBytes / shards;
  costs.whole = !shards_any ? 0 : strategy == Strategy::kFullShard ? 3 * kGroupBytes : kAllBytes;
  costs.whole_while_written = strategy == Strategy::kShardOptimizer ? costs.whole : 0;
  costs.gradient = shards_any ? kAllBytes / shards + 4 * kGroupBytes : 2 * kAllBytes;
  costs.optimizer = 2 * kAllBytes / shards;
  return costs;
}

// Of the collectives in the log; those of one rank alone are none. All replicate axes have equally many ranks.
void count(Costs& costs, const OperationLog& log, const runtime::Placement& placement) {
  const int64_t shards = placement.shard().world_size();
  for (const auto& entry : log.entries()) {
    const auto bytes = static_cast<int64_t>(entry.bytes);
    if (entry.operation == "all_gather") {
      ++costs.gathers;
      costs.gathered += bytes * (shards - 1) / shards;
    } else if (entry.operation == "reduce_scatter" && shards > 1) {
      ++costs.reduce_scatters;
      costs.reduce_scattered += bytes * (shards - 1) / shards;
    } else if (entry.operation == "all_reduce(sum)") {
      const int64_t ranks = placement.replicate().front()->world_size();
      ++costs.all_reduces;
      costs.all_reduced += 2 * bytes * (ranks - 1) / ranks;
    }
  }
}

// Of the second step, on rank 0.
Costs costs_of(Strategy strategy, const std::vector<int>& shape) {
  Costs costs;
  run_thread_ranks(
      shape[0] * shape[1],
      [&](int rank) {
        const FullyShardOptions options{.strategy = strategy, .mesh = init_device_mesh(shape, {"replicate", "shard"})};
        const auto plain = choose_placement(options);
        const auto log = std::make_shared<OperationLog>();
        runtime::Placement::Axes replicate;
        for (const auto& axis : plain.replicate()) replicate.push_back(recorded(*axis, log));
        const runtime::Placement placement(default_process_group(), recorded(plain.shard(), log), replicate);
        const auto net = build_alike([] { return std::make_shared<EqualGroupsNetImpl>(); });
        for (const auto& layer : net->layers->children()) shard_over(placement, module_tree(*layer), options);
        const auto group = shard_over(placement, module_tree(*net), options);
        optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-3));
        for (int step = 0; step < 2; ++step) {
          optimizer.zero_grad();
          group.reset_peak_stats();
          log->clear();
          forward_and_backward(group, *net);
          const auto stats = group.stats();
          optimizer.step();
          if (step == 0 || rank != 0) continue;
          costs.rows = stats.rows.peak;
          costs.whole = stats.whole.peak;
          costs.whole_while_written = group.stats().whole.current;
          costs.gradient = stats.gradient.peak;
          costs.optimizer = group.stats().optimizer.peak;
          count(costs, *log, plain);
        }
      },
      {.backend = "gloo"});
  return costs;
}

constexpr std::pair<const char*, int64_t Costs::*> kFigures[] = {
    {"gathers", &Costs::gathers},
    {"reduce-scatters", &Costs::reduce_scatters},
    {"all-reduces", &Costs::all_reduces},
    {"moved by gathers", &Costs::gathered},
    {"moved by reduce-scatters", &Costs::reduce_scattered},
    {"moved by all-reduces", &Costs::all_reduced},
    {"rows", &Costs::rows},
    {"whole parameters, at most", &Costs::whole},
    {"whole parameters while rows are written", &Costs::whole_while_written},
    {"gradients, at most", &Costs::gradient},
    {"optimizer state of AdamW", &Costs::optimizer}};

void expect_as_in_the_document(const Costs& expected, const Costs& found) {
  for (const auto& [name, figure] : kFigures) {
    const bool is_bound = figure == &Costs::gathers || figure == &Costs::gathered || figure == &Costs::whole ||
                          figure == &Costs::gradient;
    if (is_bound) {
      EXPECT_LE(found.*figure, expected.*figure) << name;
      EXPECT_GE(found.*figure, expected.*figure / 2) << name;
    } else {
      EXPECT_EQ(found.*figure, expected.*figure) << name;
    }
  }
}

TEST(StrategyCosts, AreThoseOfTheDocument) {
  constexpr Strategy kColumns[] = {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kShardOptimizer,
                                   Strategy::kReplicate};
  for (const auto& shape : {std::vector{1, 2}, std::vector{2, 2}}) {
    std::vector<Costs> columns;
    for (const auto strategy : kColumns) {
      SCOPED_TRACE(c10::str(strategy, " over ", shape[0], " x ", shape[1]));
      columns.push_back(costs_of(strategy, shape));
      const bool replicates = strategy == Strategy::kReplicate;
      std::vector<int64_t> replicas(shape.begin(), shape.begin() + (replicates ? 2 : 1));
      std::erase(replicas, 1);
      expect_as_in_the_document(expected_of(strategy, replicates ? 1 : shape[1], replicas), columns.back());
    }
    std::cout << "\nPer step and rank, " << shape[0] << " x " << shape[1] << " ranks, " << kGroups << " groups of "
              << kGroupBytes << " bytes:\n\n| |";
    for (const auto strategy : kColumns) std::cout << ' ' << strategy << " |";
    std::cout << "\n|---|---|---|---|---|\n";
    for (const auto& [name, figure] : kFigures) {
      std::cout << "| " << name << " |";
      for (const auto& costs : columns) std::cout << ' ' << costs.*figure << " |";
      std::cout << '\n';
    }
  }
}

}  // namespace
}  // namespace fsdp::test
