#pragma once
/// \file
/// What `fully_shard` can be told.

#include <ATen/core/Tensor.h>
#include <fsdp/process_group.h>
#include <fsdp/wrap_policy.h>

#include <memory>
#include <optional>
#include <vector>

namespace fsdp {

/// How much of the training state is sharded (stages of ZeRO, arXiv:1910.02054).
enum class Strategy : uint8_t {
  kFullShard,       ///< parameters, gradients and optimizer state (ZeRO-3)
  kShardGradOp,     ///< gradients and optimizer state (ZeRO-2); not there yet
  kShardOptimizer,  ///< optimizer state (ZeRO-1); not there yet
  kReplicate,       ///< nothing (DDP); not there yet
};

/// When whole parameters are freed after they were read in forward.
class Reshard {
 public:
  /// As soon as forward goes on to other groups; backward gathers again: two gathers per iteration. Least memory.
  static Reshard always() { return Reshard(true, std::nullopt); }
  /// After backward: one gather per iteration. All groups are whole between forward and backward.
  static Reshard never() { return Reshard(false, std::nullopt); }
  /// As `always`, but what is freed stays after forward, spread over each `ranks` neighbours of the ranks that rows are
  /// sharded over, among which backward gathers it (hpZ of ZeRO++, arXiv:2306.10209). Divides their number: 1 is
  /// `never`, all of them `always`; what is between is not there yet.
  static Reshard within(int ranks) { return Reshard(ranks != 1, ranks); }
  bool after_forward() const { return after_forward_; }
  /// Of `within`.
  std::optional<int> ranks() const { return ranks_; }

 private:
  Reshard(bool after_forward, std::optional<int> ranks) : after_forward_(after_forward), ranks_(ranks) {}
  bool after_forward_;
  std::optional<int> ranks_;
};

/// Dtypes of compute and reduction; not there yet.
struct MixedPrecisionPolicy {
  std::optional<at::ScalarType> param_dtype = std::nullopt, reduce_dtype = std::nullopt, output_dtype = std::nullopt;
  bool cast_forward_inputs = true;
};

/// Rows, gradients and optimizer state in host memory; not there yet.
struct CPUOffloadPolicy {
  bool pin_memory = true;
};

/// Every field is optional. Values must be the same on every rank. What is not there yet is a UsageError of
/// fully_shard.
///
///     fsdp::fully_shard(gpt, {.reshard_after_forward = fsdp::Reshard::never()});
struct FullyShardOptions {
  Strategy strategy = Strategy::kFullShard;
  /// Unset: always, but never for the outermost group of a scope, which backward needs first.
  std::optional<Reshard> reshard_after_forward = std::nullopt;
  std::optional<MixedPrecisionPolicy> mp_policy = std::nullopt;
  std::optional<CPUOffloadPolicy> offload_policy = std::nullopt;
  /// How many bytes of whole parameters may be gathered ahead of the group that computes, beside it and the groups
  /// around it: as many groups as followed in the last pass, or as the prefetch lists name, and fit. 0: none. Unset:
  /// one group, whatever its size. Not negative.
  std::optional<int64_t> max_prefetched_bytes = std::nullopt;
  /// Parameters under the module that are neither sharded nor reduced: they stay whole, each rank's its own.
  std::vector<at::Tensor> ignored_params = {};
  /// Makes groups of submodules too, innermost first; not for TorchScript modules and lists.
  AutoWrapPolicy auto_wrap_policy = {};
  /// The ranks to shard over; null: the default process group.
  std::shared_ptr<ProcessGroup> process_group = nullptr;
  /// Every rank starts from rank 0's values of what is sharded and of the buffers under the module; ignored parameters
  /// stay each rank's own. Without it the ranks' parameters have to be the same: a Mismatch names the first that is
  /// not.
  bool sync_module_states = false;
  /// Where every rank has all rows (Strategy::kReplicate): gradients of at most so many bytes are summed together, in
  /// the reverse order of the parameters, while backward goes on; of the first ones in a group 1 MiB. A parameter that
  /// is larger is summed alone. Smaller buckets begin earlier, larger ones move more bytes a second.
  int64_t bucket_cap_bytes = int64_t{25} << 20;
};

}  // namespace fsdp
