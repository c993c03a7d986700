#pragma once
/// \file
/// The settings of a group, which come from `fully_shard` and from the user.

#include <fsdp/group_collectives.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/host_rows.h"
#include "runtime/param_slot.h"
#include "runtime/placement.h"
#include "runtime/rank_state.h"

namespace fsdp::runtime {

struct ReductionPolicy {
  std::optional<double> divide_factor;  ///< divisor of the sums; if unset, the number of ranks of all axes
  /// True if gradients are also summed over the replicas. Otherwise the group keeps the sum over the shard axis and
  /// adds it to its next reduction.
  bool all_reduces = true;
  /// Function that, if set, reduces over the shard axis in place of the communicator's own reduce_scatter.
  ReduceScatter custom_reduce_scatter = {};
  /// Function that gets this rank's slice of each plane's reduced gradients before they are added to `.grad`.
  std::function<void(const at::Tensor& rows)> hook = {};
};

/// The settings that may change between iterations.
struct GroupPolicy {
  /// True if the group reshards after forward. If unset, it does so unless it is the outermost group of a scope.
  std::optional<bool> reshard_after_forward;
  bool reshard_after_backward = true;
  /// True if a write to the rows frees whole parameters that stayed after backward. Otherwise they keep their memory
  /// for the next all-gather.
  bool free_when_written = true;
  bool requires_gradient_sync = true;
  bool is_last_backward = true;  ///< true if the end of a backward waits for its reductions
  /// True if backward may gather again. Otherwise whole parameters stay from forward to backward.
  bool unshard_in_backward = true;
  /// True if a backward reduces the group even if forward never reached it.
  bool reduces_unused = false;
  /// Largest number of bytes of gradients that one all-reduce sums where every rank has all rows.
  int64_t bucket_cap_bytes = int64_t{25} << 20;
  ReductionPolicy reduction;
  /// Function that, if set, gathers whole parameters in place of the communicator's own all_gather.
  AllGather custom_all_gather = {};
  /// Function that gets the parameters that have a gradient, as soon as all gradients of the group are complete.
  std::function<void(const std::vector<at::Tensor>& parameters)> post_accumulate_grad_hook = {};
  /// Largest number of bytes of whole parameters that are gathered ahead while this group is read. If unset, one group
  /// is gathered ahead, or two groups that lie inside this one.
  std::optional<int64_t> max_prefetched_bytes = std::nullopt;
  /// True if each forward begins by broadcasting rank 0's buffers.
  bool broadcasts_buffers = false;
  /// Value of FullyShardOptions::broadcast_buffers. If unset, the strategy decides `broadcasts_buffers`.
  std::optional<bool> told_to_broadcast = std::nullopt;
  /// Folder of the files in which rows, gradients and optimizer state lie. If empty, they lie where `row_memory` says.
  std::string disk_folder = {};
  RowMemory row_memory = RowMemory::kBesideWhole;
  /// Dtypes to which a call of the module's handle casts its floating-point arguments and results. If unset, they keep
  /// their dtype.
  std::optional<c10::ScalarType> input_dtype = std::nullopt, output_dtype = std::nullopt;
  /// Groups to prefetch, in place of those that the recorded order predicts.
  std::vector<GroupId> forward_prefetch, backward_prefetch;
};

/// The arguments from which a ParamGroup is made.
struct GroupSpec {
  std::string name;
  std::vector<GroupMember> parameters;
  Placement placement;
  std::shared_ptr<RankState> rank_state;
  GroupPolicy policy;
};

}  // namespace fsdp::runtime
