#include <fsdp/advice.h>

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <fstream>
#include <ostream>
#include <string>

#include "api/group_view.h"
#include "api/placement_choice.h"
#include "api/rows.h"
#include "comm/core/check.h"
#include "runtime/param_group.h"

namespace fsdp {
namespace {

int64_t share_of_available_memory(const ProcessGroup& ranks) {
  std::ifstream file("/proc/meminfo");
  const auto own = ranks.hosts()[static_cast<size_t>(ranks.rank())];
  const auto neighbours = std::ranges::count(ranks.hosts(), own);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("MemAvailable:")) return std::stoll(line.substr(line.find(':') + 1)) * 1024 / neighbours;
  return 0;
}

int64_t extreme(int64_t value, ReduceOp op, const std::shared_ptr<ProcessGroup>& ranks, const Tag& tag) {
  return all_reduce(at::tensor({value}, at::kLong), op, ranks, tag).item<int64_t>();
}

// A smaller share of time spent waiting is not worth the memory that another strategy costs.
constexpr double kMuchWaiting = 0.05;

// Returns the estimated bytes of a rank with another strategy. Whole gradients that wait for their reduction take the
// same memory with each strategy.
int64_t bytes_with(Strategy strategy, const Measured& now) {
  if (strategy == Strategy::kShardGradOp) return now.rows + now.parameter_bytes + now.gradient + now.optimizer;
  const int64_t more_gradients = now.parameter_bytes - now.parameter_bytes / now.shards;
  return now.parameter_bytes + now.gradient + more_gradients + now.optimizer * now.shards;
}

}  // namespace

Advice choose_advice(const Measured& measured) {
  const int64_t held = measured.rows + measured.whole + measured.gradient + measured.optimizer;
  Advice advice{.now = measured.strategy,
                .better = measured.strategy,
                .waiting_share = measured.waiting_share,
                .bytes_now = held,
                .bytes_then = held,
                .spare_bytes = measured.spare_bytes};
  if (measured.strategy != Strategy::kFullShard || measured.waiting_share < kMuchWaiting) return advice;
  for (const auto strategy : {Strategy::kReplicate, Strategy::kShardGradOp}) {
    const int64_t bytes = bytes_with(strategy, measured);
    if (bytes - held > measured.spare_bytes) continue;
    advice.better = strategy;
    advice.bytes_then = bytes;
    break;
  }
  return advice;
}

Advice advise(const Group& model, std::optional<int64_t> spare_bytes) {
  auto& own = *param_groups(model).front();
  const auto where = own.where("advise");
  const auto ranks = own.placement().shared_process_group();
  const auto waiting_share = own.rank_state().waiting_share();
  require(waiting_share.has_value(), where, "no step has been measured yet. Train some steps first");
  require(spare_bytes || own.params().is_on_cpu(), where,
          "spare_bytes is not set, and the parameters are not on the CPU. Pass the bytes of device memory that a rank "
          "may use in addition to what it uses now");
  const auto stats = model.stats();
  const Tag tag{"advise of " + own.name(), {}};
  const auto most = [&](int64_t bytes) { return extreme(bytes, ReduceOp::kMax, ranks, tag); };
  int64_t parameter_bytes = 0;
  for (const auto& group : param_groups(model)) parameter_bytes += group->whole_bytes();
  return choose_advice(
      {.strategy = strategy_of(own),
       .waiting_share = mean(*waiting_share, ranks, tag),
       .parameter_bytes = parameter_bytes,
       .shards = own.placement().shard().world_size(),
       .rows = most(stats.rows.peak),
       .whole = most(stats.whole.peak),
       .gradient = most(stats.gradient.peak),
       .optimizer = most(stats.optimizer.peak),
       .spare_bytes = extreme(spare_bytes.value_or(share_of_available_memory(*ranks)), ReduceOp::kMin, ranks, tag)});
}

std::ostream& operator<<(std::ostream& out, const Advice& advice) {
  const auto percent = static_cast<int>(advice.waiting_share * 100 + 0.5);
  out << percent << " % of the time a rank waits for others, and holds at most " << megabytes(advice.bytes_now)
      << " with " << advice.now << ". ";
  if (advice.better == advice.now) return out << "No other strategy would be better.";
  return out << advice.better << " would move two thirds of the bytes and hold " << megabytes(advice.bytes_then) << "; "
             << megabytes(advice.spare_bytes) << " are available.";
}

}  // namespace fsdp
