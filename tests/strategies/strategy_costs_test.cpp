// Compares the bytes that each strategy moves and holds in a step, for a rank and for a host, with the formulas in
// docs/choosing.md.

#include <iostream>
#include <mutex>

#include "api/placement_choice.h"
#include "strategies/equal_groups_net.h"
#include "strategies/steps.h"

namespace fsdp::test::strategies {
namespace {

using Net = EqualGroupsNetImpl;

// A row of a table of costs.
struct Figure {
  const char* name;
  int64_t expected, found;
  bool is_bound = false;  // `found` may be less than the formula, down to half of it
  int64_t counts = 0;     // upper limit for bytes that count the ranks with a gradient, which travel with the gradients
};

// A column of the table.
struct Column {
  std::string name;
  std::vector<Figure> figures;
};

void expect_as_in_the_document(const Column& column) {
  SCOPED_TRACE(column.name);
  for (const auto& [name, expected, found, is_bound, counts] : column.figures) {
    EXPECT_LE(found, expected + counts) << name;
    EXPECT_GE(found, is_bound ? expected / 2 : expected) << name;
  }
}

void print(const std::string& title, const std::vector<Column>& columns) {
  std::cout << "\nPer step and " << title << ", " << Net::kGroups << " groups of " << Net::kGroupBytes << " bytes:\n";
  std::cout << "\n| |";
  for (const auto& column : columns) std::cout << ' ' << column.name << " |";
  std::cout << "\n|---|";
  for (size_t i = 0; i < columns.size(); ++i) std::cout << "---|";
  for (size_t line = 0; line < columns[0].figures.size(); ++line) {
    std::cout << "\n| " << columns[0].figures[line].name << " |";
    for (const auto& column : columns) std::cout << ' ' << column.figures[line].found << " |";
  }
  std::cout << '\n';
}

// One step: the peak of the group's bytes until backward ended, its bytes after the step, and the bytes that the rank
// sent.
struct Step {
  GroupStats backward, after;
  Traffic moved;
};

// Runs two steps, with `begin` before each of them, and returns the second one.
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

// Counts of ranks with a gradient that a rank sends to one other rank: one per group, because each has one parameter.
constexpr int64_t kCounts = Net::kGroups * int64_t{sizeof(float)};

// Number of collectives, and of the bytes that a rank sends in them.
struct Collectives {
  int64_t count = 0, bytes = 0;
};

Collectives collectives_in(const OperationLog& log, const std::string& operation, int64_t ranks) {
  Collectives found;
  for (const auto& entry : log.entries(operation)) {
    ++found.count;
    found.bytes += static_cast<int64_t>(entry.bytes) * (ranks - 1) / ranks;
  }
  return found;
}

// Compares what rank 0 measured with the formulas.
Column costs_of(Strategy strategy, const Shape& shape) {
  Step step;
  const auto log = std::make_shared<OperationLog>();
  const auto run = [&](int rank) {
    const auto options = options_for(strategy, shape);
    const auto plain = choose_placement(options);
    const auto own = rank == 0 ? log : std::make_shared<OperationLog>();
    const auto placement = recorded(plain, own);
    const auto found =
        second_step([&](torch::nn::Module& module) { return shard_over(placement, module_tree(module), options); },
                    [&] { own->clear(); });
    if (rank == 0) step = found;
  };
  run_thread_ranks(ranks_of(shape), run, {.backend = "gloo"});

  const bool shards_any = strategy != Strategy::kReplicate;
  const int64_t shards = shards_any ? shape[1] : 1;
  const int64_t replicas = shape[0];  // number of replicas of the rows; every axis has one or two ranks
  const int64_t sums = (replicas > 1 ? 1 : 0) + (shards_any ? 0 : 1);
  const int64_t gathers = !shards_any ? 0 : strategy == Strategy::kFullShard ? 2 * Net::kGroups - 1 : Net::kGroups;
  const int64_t whole = !shards_any ? 0 : strategy == Strategy::kFullShard ? 3 * Net::kGroupBytes : Net::kAllBytes;
  const int64_t rows = Net::kAllBytes / shards;
  const auto gathered = collectives_in(*log, "all_gather", shards);
  const auto scattered = shards_any ? collectives_in(*log, "reduce_scatter", shards) : Collectives();
  const auto reduced = collectives_in(*log, "all_reduce(sum)", 2);
  return {c10::str(strategy),
          {{"gathers", gathers, gathered.count, true},
           {"reduce-scatters", shards_any ? Net::kGroups : 0, scattered.count},
           {"all-reduces", sums * Net::kGroups, reduced.count},
           {"moved by gathers", gathers * Net::kGroupBytes * (shards - 1) / shards, gathered.bytes, true},
           {"moved by reduce-scatters", Net::kAllBytes * (shards - 1) / shards, scattered.bytes, false, kCounts},
           {"moved by all-reduces", sums * rows, 2 * reduced.bytes, false, sums * kCounts},
           {"rows", rows, step.backward.rows.peak},
           {"whole parameters, at most", whole, step.backward.whole.peak, true},
           {"whole parameters while rows are written", strategy == Strategy::kShardOptimizer ? whole : 0,
            step.after.whole.current},
           {"gradients, at most", shards_any ? rows + 4 * Net::kGroupBytes : 2 * Net::kAllBytes,
            step.backward.gradient.peak, true},
           {"optimizer state of AdamW", 2 * rows, step.after.optimizer.peak}}};
}

TEST(StrategyCosts, AreThoseOfTheDocument) {
  for (const auto& shape : {Shape{1, 2}, Shape{2, 2}}) {
    std::vector<Column> columns;
    for (const auto strategy : kStrategies) {
      columns.push_back(costs_of(strategy, shape));
      expect_as_in_the_document(columns.back());
    }
    print(c10::str("rank, ", shape[0], " x ", shape[1], " ranks"), columns);
  }
}

constexpr int64_t kHosts = 2, kHostRanks = 2;

// The way in which a column of the table of hosts distributes the model.
struct WayOnHosts {
  std::string name;
  Strategy strategy;
  bool replicates_hosts = false;  // true if a mesh shards rows inside a host
  bool keeps_second_shards = false;
};

const WayOnHosts kWaysOnHosts[] = {{"kFullShard", Strategy::kFullShard},
                                   {"kFullShard, within a host after forward", Strategy::kFullShard, false, true},
                                   {"kShardGradOp", Strategy::kShardGradOp},
                                   {"kShardOptimizer", Strategy::kShardOptimizer},
                                   {"kReplicate", Strategy::kReplicate},
                                   {"kFullShard in a host, replicas across", Strategy::kFullShard, true}};

// Compares what the ranks of the first host measured together with the formulas.
Column costs_of_host(const WayOnHosts& way) {
  Step host;
  std::mutex mutex;
  const auto run = [&](int rank) {
    FullyShardOptions options{.strategy = way.strategy};
    if (way.replicates_hosts) options.mesh = init_device_mesh({kHosts, kHostRanks}, {"replicate", "shard"});
    if (way.keeps_second_shards) options.reshard_after_forward = Reshard::within(kHostRanks);
    const auto step = second_step([&](torch::nn::Module& module) { return fully_shard(module, options); });
    const std::lock_guard lock(mutex);
    if (rank >= kHostRanks) return;
    host.backward.gathers = step.backward.gathers;
    host.moved.between_hosts.sent += step.moved.between_hosts.sent;
    host.moved.inside_host.sent += step.moved.inside_host.sent;
    host.backward.rows.peak += step.backward.rows.peak;
    host.backward.whole.peak += step.backward.whole.peak;
    host.backward.gradient.peak += step.backward.gradient.peak;
    host.after.optimizer.peak += step.after.optimizer.peak;
  };
  run_thread_ranks(kHosts * kHostRanks, run, {.backend = "hierarchical", .hosts = {0, 0, 1, 1}});

  const bool replicates = way.strategy == Strategy::kReplicate, crosses = !replicates && !way.replicates_hosts;
  const bool comes_and_goes = way.strategy == Strategy::kFullShard && !way.keeps_second_shards;
  EXPECT_LE(host.backward.gathers, comes_and_goes ? 2 * Net::kGroups - 1 : Net::kGroups) << way.name;
  constexpr int64_t kCrossing = Net::kAllBytes * (kHosts - 1) / kHosts;  // one pass around all hosts
  // Between hosts, the counts take up to 16 bytes of a message, because tensors in it are aligned.
  constexpr int64_t kCountsOfHost = kHosts * kHostRanks * Net::kGroups * 16;
  const int64_t gathered = host.backward.gathers * Net::kGroupBytes * (kHosts - 1) / kHosts;
  const int64_t rows = Net::kAllBytes * (replicates ? kHostRanks : 1) / (crosses ? kHosts : 1);
  const int64_t whole = comes_and_goes ? 3 * Net::kGroupBytes : Net::kAllBytes;
  return {way.name,
          {{"sent to other hosts", crosses ? gathered + kCrossing : 2 * kCrossing, host.moved.between_hosts.sent,
            false, kCountsOfHost},
           {"sent inside the host", (replicates ? kHostRanks : kHostRanks - 1) * Net::kAllBytes,
            host.moved.inside_host.sent, false, 2 * kCountsOfHost},
           {"rows", rows, host.backward.rows.peak},
           {"whole parameters, at most", crosses ? whole : 0, host.backward.whole.peak, true},
           {"gradients, at most", replicates ? 2 * rows : rows + kHostRanks * 4 * Net::kGroupBytes,
            host.backward.gradient.peak, true},
           {"optimizer state of AdamW", 2 * rows, host.after.optimizer.peak}}};
}

TEST(StrategyCosts, OfAHostAmongSeveralAreThoseOfTheDocument) {
  std::vector<Column> columns;
  for (const auto& way : kWaysOnHosts) {
    columns.push_back(costs_of_host(way));
    expect_as_in_the_document(columns.back());
  }
  print(c10::str("host, ", kHosts, " hosts of ", kHostRanks, " ranks"), columns);
}

}  // namespace
}  // namespace fsdp::test::strategies
