// What each strategy moves and holds in a step, by the formulas of docs/strategies.md: of a rank, and of a host.

#include <iomanip>
#include <iostream>
#include <mutex>

#include "api/placement_choice.h"
#include "strategies/equal_groups_net.h"
#include "strategies/steps.h"

namespace fsdp::test::strategies {
namespace {

using Net = EqualGroupsNetImpl;

// A line of a table.
template <class Costs>
struct Figure {
  const char* name;
  int64_t Costs::* value;
  bool is_bound = false;  // what is found may be less, down to half
};

template <class Costs>
void expect_as_in_the_document(std::span<const Figure<Costs>> figures, const Costs& expected, const Costs& found) {
  for (const auto& [name, value, is_bound] : figures) {
    EXPECT_LE(found.*value, expected.*value) << name;
    EXPECT_GE(found.*value, is_bound ? expected.*value / 2 : expected.*value) << name;
  }
}

template <class Costs>
void print(const std::string& title, const std::vector<std::string>& names, std::span<const Figure<Costs>> figures,
           const std::vector<Costs>& columns) {
  std::cout << "\nPer step and " << title << ", " << Net::kGroups << " groups of " << Net::kGroupBytes << " bytes:\n\n";
  std::cout << "| | " << c10::Join(" | ", names) << " |\n|---|";
  for (size_t i = 0; i < names.size(); ++i) std::cout << "---|";
  for (const auto& figure : figures) {
    std::cout << "\n| " << figure.name << " |";
    for (const auto& costs : columns) std::cout << ' ' << costs.*figure.value << " |";
  }
  std::cout << '\n';
}

// Of a step: what the group held at most until its backward was over, what it holds after it, and what the rank sent.
struct Step {
  GroupStats backward, after;
  Traffic moved;
};

// Two steps; `begin` is called before each.
Step second_step(const std::function<Group(torch::nn::Module&)>& shard, const std::function<void()>& begin = [] {}) {
  const auto net = build_alike([] { return std::make_shared<Net>(); });
  for (const auto& layer : net->layers->children()) shard(*layer);
  const auto group = shard(*net);
  optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-3));
  Step found;
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    group.reset_peak_stats();
    begin();
    const auto gathers = group.stats().gathers;
    const auto before = traffic();
    forward_and_backward(group, *net);
    found.backward = group.stats();
    found.backward.gathers -= gathers;
    found.moved = traffic() - before;
    optimizer.step();
    found.after = group.stats();
  }
  return found;
}

struct Costs {
  int64_t gathers = 0, reduce_scatters = 0, all_reduces = 0;
  int64_t gathered = 0, reduce_scattered = 0, all_reduced = 0;  // bytes that a rank sends
  int64_t rows = 0, whole = 0, whole_while_written = 0, gradient = 0, optimizer = 0;
};

constexpr Figure<Costs> kFigures[] = {{"gathers", &Costs::gathers, true},
                                      {"reduce-scatters", &Costs::reduce_scatters},
                                      {"all-reduces", &Costs::all_reduces},
                                      {"moved by gathers", &Costs::gathered, true},
                                      {"moved by reduce-scatters", &Costs::reduce_scattered},
                                      {"moved by all-reduces", &Costs::all_reduced},
                                      {"rows", &Costs::rows},
                                      {"whole parameters, at most", &Costs::whole, true},
                                      {"whole parameters while rows are written", &Costs::whole_while_written},
                                      {"gradients, at most", &Costs::gradient, true},
                                      {"optimizer state of AdamW", &Costs::optimizer}};

// The formulas.
Costs expected_of(Strategy strategy, int64_t shards, const std::vector<int64_t>& replicas) {
  const bool shards_any = shards > 1;
  Costs costs;
  costs.gathers = !shards_any ? 0 : strategy == Strategy::kFullShard ? 2 * Net::kGroups - 1 : Net::kGroups;
  costs.reduce_scatters = shards_any ? Net::kGroups : 0;
  costs.gathered = costs.gathers * Net::kGroupBytes * (shards - 1) / shards;
  costs.reduce_scattered = Net::kAllBytes * (shards - 1) / shards;
  for (const auto ranks : replicas) {
    costs.all_reduces += Net::kGroups;
    costs.all_reduced += 2 * Net::kAllBytes / shards * (ranks - 1) / ranks;
  }
  costs.rows = Net::kAllBytes / shards;
  costs.whole = !shards_any ? 0 : strategy == Strategy::kFullShard ? 3 * Net::kGroupBytes : Net::kAllBytes;
  costs.whole_while_written = strategy == Strategy::kShardOptimizer ? costs.whole : 0;
  costs.gradient = shards_any ? Net::kAllBytes / shards + 4 * Net::kGroupBytes : 2 * Net::kAllBytes;
  costs.optimizer = 2 * Net::kAllBytes / shards;
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

// On rank 0.
Costs costs_of(Strategy strategy, const Shape& shape) {
  Costs costs;
  run_thread_ranks(ranks_of(shape),
                   [&](int rank) {
                     const auto options = options_for(strategy, shape);
                     const auto plain = choose_placement(options);
                     const auto log = std::make_shared<OperationLog>();
                     const auto placement = recorded(plain, log);
                     const auto step = second_step(
                         [&](torch::nn::Module& module) { return shard_over(placement, module_tree(module), options); },
                         [&] { log->clear(); });
                     if (rank != 0) return;
                     costs.rows = step.backward.rows.peak;
                     costs.whole = step.backward.whole.peak;
                     costs.whole_while_written = step.after.whole.current;
                     costs.gradient = step.backward.gradient.peak;
                     costs.optimizer = step.after.optimizer.peak;
                     count(costs, *log, plain);
                   },
                   {.backend = "gloo"});
  return costs;
}

TEST(StrategyCosts, AreThoseOfTheDocument) {
  for (const auto& shape : {Shape{1, 2}, Shape{2, 2}}) {
    std::vector<Costs> columns;
    for (const auto strategy : kStrategies) {
      SCOPED_TRACE(text_of(strategy, shape));
      columns.push_back(costs_of(strategy, shape));
      const bool replicates = strategy == Strategy::kReplicate;
      std::vector<int64_t> replicas(shape.begin(), shape.begin() + (replicates ? 2 : 1));
      std::erase(replicas, 1);
      expect_as_in_the_document<Costs>(kFigures, expected_of(strategy, replicates ? 1 : shape[1], replicas),
                                       columns.back());
    }
    print<Costs>(c10::str("rank, ", shape[0], " x ", shape[1], " ranks"),
                 {"kFullShard", "kShardGradOp", "kShardOptimizer", "kReplicate"}, kFigures, columns);
  }
}

constexpr int64_t kHostCount = 2, kHostRanks = 2;
constexpr int kAllRanks = kHostCount * kHostRanks;

// How a column of the table of hosts shares the model out.
struct WayOnHosts {
  std::string name;
  Strategy strategy;
  bool replicates_hosts = false;  // a mesh: rows are shared out inside a host
  bool keeps_second_shards = false;
};

const WayOnHosts kWaysOnHosts[] = {{"kFullShard", Strategy::kFullShard},
                                   {"kFullShard, within a host after forward", Strategy::kFullShard, false, true},
                                   {"kShardGradOp", Strategy::kShardGradOp},
                                   {"kShardOptimizer", Strategy::kShardOptimizer},
                                   {"kReplicate", Strategy::kReplicate},
                                   {"kFullShard in a host, replicas across", Strategy::kFullShard, true}};

// Of all ranks of one host.
struct HostCosts {
  int64_t between_hosts = 0, inside_host = 0;  // bytes sent
  int64_t rows = 0, whole = 0, gradient = 0, optimizer = 0;
};

constexpr Figure<HostCosts> kHostFigures[] = {{"sent to other hosts", &HostCosts::between_hosts},
                                              {"sent inside the host", &HostCosts::inside_host},
                                              {"rows", &HostCosts::rows},
                                              {"whole parameters, at most", &HostCosts::whole, true},
                                              {"gradients, at most", &HostCosts::gradient, true},
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

// Of the first host, and how many groups were gathered.
std::pair<HostCosts, int64_t> costs_of_host(const WayOnHosts& way) {
  HostCosts costs;
  int64_t gathers = 0;
  std::mutex mutex;
  run_thread_ranks(kAllRanks,
                   [&](int rank) {
                     FullyShardOptions options{.strategy = way.strategy};
                     if (way.replicates_hosts)
                       options.mesh = init_device_mesh({kHostCount, kHostRanks}, {"replicate", "shard"});
                     if (way.keeps_second_shards) options.reshard_after_forward = Reshard::within(kHostRanks);
                     const auto step =
                         second_step([&](torch::nn::Module& module) { return fully_shard(module, options); });
                     const std::lock_guard lock(mutex);
                     if (rank >= kHostRanks) return;
                     gathers = step.backward.gathers;
                     costs.between_hosts += step.moved.between_hosts.sent;
                     costs.inside_host += step.moved.inside_host.sent;
                     costs.rows += step.backward.rows.peak;
                     costs.whole += step.backward.whole.peak;
                     costs.gradient += step.backward.gradient.peak;
                     costs.optimizer += step.after.optimizer.peak;
                   },
                   {.backend = "hierarchical", .hosts = {0, 0, 1, 1}});
  return {costs, gathers};
}

TEST(StrategyCosts, OfAHostAmongSeveralAreThoseOfTheDocument) {
  std::vector<HostCosts> columns;
  std::vector<std::string> names;
  for (const auto& way : kWaysOnHosts) {
    SCOPED_TRACE(way.name);
    const auto [found, gathers] = costs_of_host(way);
    columns.push_back(found);
    names.push_back(way.name);
    const bool gathers_twice = way.strategy == Strategy::kFullShard && !way.keeps_second_shards;
    EXPECT_LE(gathers, gathers_twice ? 2 * Net::kGroups - 1 : Net::kGroups);
    expect_as_in_the_document<HostCosts>(kHostFigures, expected_of_host(way, gathers), found);
  }
  print<HostCosts>(c10::str("host, ", kHostCount, " hosts of ", kHostRanks, " ranks"), names, kHostFigures, columns);
}

}  // namespace
}  // namespace fsdp::test::strategies
