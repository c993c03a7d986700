#include "api/advice_choice.h"

namespace fsdp {
namespace {

// Less than this is not worth memory.
constexpr double kMuchWaiting = 0.05;

// Whole gradients of groups on their way are the same in each strategy.
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

}  // namespace fsdp
