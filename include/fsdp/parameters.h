#pragma once
/// \file
/// Properties of one sharded parameter. The functions treat an ordinary tensor as if it were sharded over one rank. All
/// functions work inside and outside scopes, on any thread, and throw UsageError for an undefined tensor.

#include <ATen/core/Tensor.h>
#include <fsdp/process_group.h>

#include <cstdint>
#include <memory>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup sharding
/// \{

/// Range of the rows of a parameter that this rank holds, as indices of dim 0. A large parameter with few rows for the
/// number of ranks, such as stacked experts of sizes [8, 14336, 4096] on 16 ranks, is sharded along its first dims as
/// if they were one: outside scopes it shows sizes [count, 4096], and its rows have the numbers 0 to 8 * 14336 - 1.
struct LocalRowRange {
  int64_t first = 0;  ///< index of the first row
  int64_t count = 0;  ///< number of rows
  /// Returns true if both ranges are equal.
  bool operator==(const LocalRowRange&) const = default;
};

/// Returns the sizes of the whole parameter. Not collective.
[[nodiscard]] std::vector<int64_t> global_sizes(const at::Tensor& parameter);
/// Returns the rows of the parameter that this rank holds; a scalar has one row. Not collective.
///
///     auto [first, count] = fsdp::local_rows(model->head->weight);
[[nodiscard]] LocalRowRange local_rows(const at::Tensor& parameter);

/// Ranks that hold a parameter, like the mesh and placements of FSDP2's DTensor.
struct ParameterPlacement {
  /// Process group of all axes, i.e. of FullyShardOptions::mesh or FullyShardOptions::process_group; null if the tensor
  /// is not sharded.
  std::shared_ptr<ProcessGroup> ranks = nullptr;
  /// Process group of the axis along which rows are sharded (DTensor's Shard(0)); see local_rows. If every rank has all
  /// rows, it is a process group of this rank alone.
  std::shared_ptr<ProcessGroup> shard = nullptr;
  /// Process groups of the axes along which rows are equal (DTensor's Replicate()), in the order in which gradients are
  /// summed over the axes. Axes of one rank are left out.
  std::vector<std::shared_ptr<ProcessGroup>> replicate = {};
};

/// Returns the ranks that hold a parameter; the process groups are the mesh's own objects. Not collective. Any thread
/// may call this function, but not during fsdp::set_strategy, which changes the result. Throws UsageError, as the
/// functions above do, for an undefined tensor and for a parameter that another copy of fsdp in the process has
/// sharded.
///
///     auto [ranks, shard, replicate] = fsdp::placement_of(model->head->weight);
///     if (ranks) std::cout << "rows are shared out over " << shard->world_size() << " ranks\n";
[[nodiscard]] ParameterPlacement placement_of(const at::Tensor& parameter);

/// Returns the whole parameter as a new tensor with the parameter's sizes and the rows' dtype and device, without
/// autograd history. The argument may also be a gradient that backward left in `.grad`, or the result of element-wise
/// operators on rows or gradients outside scopes, such as an optimizer's update. Collective. Throws UsageError for a
/// view of a sharded tensor, and what Work::wait throws.
///
///     auto weight = fsdp::full_tensor(model->head->weight);  // on every rank
[[nodiscard]] at::Tensor full_tensor(const at::Tensor& parameter);
/// Returns the whole reduced gradient as a new tensor of the parameter's sizes, or an undefined tensor if the parameter
/// has no gradient. Call this function outside backward. Collective. Throws UsageError if the gradient does not have
/// the rows' sizes, and what Work::wait throws.
[[nodiscard]] at::Tensor full_grad(const at::Tensor& parameter);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
