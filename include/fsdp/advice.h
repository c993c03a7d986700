#pragma once
/// \file
/// Whether sharding pays for a model.

#include <fsdp/group.h>
#include <fsdp/options.h>

#include <cstdint>
#include <iosfwd>
#include <optional>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup memory
/// \{

/// What was measured since the first forward, or since `Group::reset_peak_stats()`, and what would serve better. Bytes
/// are those of rows, whole parameters, gradients and the state of fsdp::optim's optimizers, on the rank that holds
/// most; the same on every rank.
struct Advice {
  /// The model's strategy.
  Strategy now = Strategy::kFullShard;
  /// The strategy to use: the same if there is nothing better.
  Strategy better = Strategy::kFullShard;
  /// The part of the time in which a rank waited for others, from 0 to 1: the mean of the ranks.
  double waiting_share = 0;
  /// Held at most, as measured.
  int64_t bytes_now = 0;
  /// Held at most with `better`, as docs/choosing.md counts it.
  int64_t bytes_then = 0;
  /// What a rank may take more, in bytes.
  int64_t spare_bytes = 0;
};

/// Says when sharding does not pay, and what would: a model that waits for other ranks in more than 5 % of its time is
/// replicated if every rank has the memory for that, else its whole parameters stay (kShardGradOp) if they fit; both
/// move two thirds of what kFullShard moves. `spare_bytes`: what a rank may take more; unset, on the CPU: its share of
/// what is available on its host.
///
/// Collective, outside scopes; call it after some steps. Throws UsageError before the first forward, and for a model on
/// an accelerator without `spare_bytes`.
///
///     if (fsdp::rank() == 0) std::cout << advice << '\n';  // auto advice = fsdp::advise(model);
Advice advise(const Group& model, std::optional<int64_t> spare_bytes = std::nullopt);

/// Prints it as a sentence or two.
std::ostream& operator<<(std::ostream& out, const Advice& advice);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
