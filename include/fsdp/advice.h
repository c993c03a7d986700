#pragma once
/// \file
/// Advice on whether sharding pays for a model.

#include <fsdp/group.h>
#include <fsdp/options.h>

#include <cstdint>
#include <iosfwd>
#include <optional>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup memory
/// \{

/// Measurements since the first forward, or since `Group::reset_peak_stats()`, and the strategy that would be faster.
/// The fields have the same values on every rank. Bytes count rows, whole parameters, gradients and the state of
/// fsdp::optim's optimizers; the peak of each class is that of the rank where it is largest.
struct Advice {
  /// The model's strategy.
  Strategy now = Strategy::kFullShard;
  /// The recommended strategy; equal to `now` if no other one is better.
  Strategy better = Strategy::kFullShard;
  /// Share of the time that a rank spends waiting for other ranks, from 0 to 1, averaged over the ranks.
  double waiting_share = 0;
  /// Measured peak bytes of a rank, summed over the classes.
  int64_t bytes_now = 0;
  /// Estimated peak bytes of a rank with `better`, by the formulas of docs/choosing.md.
  int64_t bytes_then = 0;
  /// Number of additional bytes that every rank can afford.
  int64_t spare_bytes = 0;
};

/// Recommends another strategy for a kFullShard model whose ranks spend at least 5 % of their time waiting for each
/// other: kReplicate if every rank has the memory for it, otherwise kShardGradOp if every rank has the memory for that.
/// Both move two thirds of the bytes that kFullShard moves. `spare_bytes` is the number of additional bytes that a rank
/// can afford; on the CPU the default is the rank's share of its host's available memory.
///
/// Collective. Call this function outside scopes, after some steps. Throws UsageError before the first forward, and if
/// the model is on an accelerator and `spare_bytes` is not given.
///
///     if (fsdp::rank() == 0) std::cout << advice << '\n';  // auto advice = fsdp::advise(model);
Advice advise(const Group& model, std::optional<int64_t> spare_bytes = std::nullopt);

/// Prints the advice in two sentences.
std::ostream& operator<<(std::ostream& out, const Advice& advice);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
