#pragma once
/// \file
/// What `fully_shard` and the user decided about a group.

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
  std::optional<double> divide_factor;  ///< unset: the number of ranks of both axes
  /// Whether replicas are summed too. Otherwise the sum over the shard axis is kept for the next reduction.
  bool all_reduces = true;
  /// Reduces over the shard axis in place of the communicator's own reduce_scatter, if it is set.
  ReduceScatter custom_reduce_scatter = {};
  /// Gets this rank's slice of each plane's reduced gradients, before they are handed out.
  std::function<void(const at::Tensor& rows)> hook = {};
};

/// May change between iterations.
struct GroupPolicy {
  /// Unset: always, never for the outermost group of a scope.
  std::optional<bool> reshard_after_forward;
  bool reshard_after_backward = true;
  /// What stays after backward goes when rows are written; without it the memory stays, for the next gather.
  bool free_when_written = true;
  bool requires_gradient_sync = true;
  bool is_last_backward = true;  ///< wait for reductions at the end of backward
  /// Gather again in backward; without it whole parameters stay from forward to backward.
  bool unshard_in_backward = true;
  /// Take part in the reduction of a backward even if forward never reached the group.
  bool reduces_unused = false;
  /// Where every rank has all rows: how many bytes of gradients are reduced together, at most.
  int64_t bucket_cap_bytes = int64_t{25} << 20;
  ReductionPolicy reduction;
  /// Gathers whole parameters in place of the communicator's own all_gather, if it is set.
  AllGather custom_all_gather = {};
  /// Gets the parameters that have a gradient as soon as the group's are complete.
  std::function<void(const std::vector<at::Tensor>& parameters)> post_accumulate_grad_hook = {};
  /// Of whole parameters that are gathered ahead while this group is read; unset: one group, or two inside this one.
  std::optional<int64_t> max_prefetched_bytes = std::nullopt;
  /// Buffers are rank 0's when a forward begins; what the user said of that, else the strategy says it.
  bool broadcasts_buffers = false;
  std::optional<bool> told_to_broadcast = std::nullopt;
  /// In which rows, gradients and optimizer state are kept in files; empty: `row_memory` says where they are.
  std::string disk_folder = {};
  RowMemory row_memory = RowMemory::kBesideWhole;
  /// Of floating-point arguments and results of a call of the module's handle; unset: as they are.
  std::optional<c10::ScalarType> input_dtype = std::nullopt, output_dtype = std::nullopt;
  /// Groups to prefetch, instead of the recorded order.
  std::vector<GroupId> forward_prefetch, backward_prefetch;
};

struct GroupSpec {
  std::string name;
  std::vector<GroupMember> parameters;
  Placement placement;
  std::shared_ptr<RankState> rank_state;
  GroupPolicy policy;
};

}  // namespace fsdp::runtime
