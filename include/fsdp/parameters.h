#pragma once
/// \file
/// Questions about one sharded parameter. Ordinary tensors are answered as parameters of one rank. Inside and outside
/// of scopes alike; any thread. An undefined tensor is a UsageError.

#include <ATen/core/Tensor.h>
#include <fsdp/process_group.h>

#include <cstdint>
#include <memory>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup sharding
/// \{

/// The rows of a parameter that this rank holds: indices of dim 0. A parameter that is large and has few rows for so
/// many ranks, such as stacked experts of sizes [8, 14336, 4096] on 16 ranks, is dealt by its first dims taken
/// together; it shows [count, 4096] outside of scopes then, and its rows count from 0 to 8 * 14336.
struct LocalRowRange {
  int64_t first = 0;  ///< the number of the first one, from 0
  int64_t count = 0;  ///< how many there are
  /// Whether both are the same rows.
  bool operator==(const LocalRowRange&) const = default;
};

/// The sizes of the whole parameter. Not collective.
[[nodiscard]] std::vector<int64_t> global_sizes(const at::Tensor& parameter);
/// The rows of the whole parameter that this rank holds; a scalar is one row. Not collective.
///
///     auto [first, count] = fsdp::local_rows(model->head->weight);
[[nodiscard]] LocalRowRange local_rows(const at::Tensor& parameter);

/// Which ranks hold what of a parameter, as the mesh and the placements of FSDP2's DTensor.
struct ParameterPlacement {
  /// The ranks of all axes, those of FullyShardOptions::mesh or FullyShardOptions::process_group; null: the tensor is
  /// not sharded.
  std::shared_ptr<ProcessGroup> ranks = nullptr;
  /// The axis over which rows are shared out, DTensor's Shard(0); local_rows says which are here. A group of this rank
  /// alone where every rank has all rows.
  std::shared_ptr<ProcessGroup> shard = nullptr;
  /// The axes over which rows are the same, DTensor's Replicate(), in the order in which gradients are summed over
  /// them. An axis of one rank is left out.
  std::vector<std::shared_ptr<ProcessGroup>> replicate = {};
};

/// Where the rows of a parameter are. They are the very process groups of the mesh, which one more owner keeps. Not
/// collective. Any thread, but not beside fsdp::set_strategy, which changes the answer. Throws UsageError for an
/// undefined tensor, and for one that another copy of fsdp in the process has sharded, as the two above do.
///
///     auto [ranks, shard, replicate] = fsdp::placement_of(model->head->weight);
///     if (ranks) std::cout << "rows are shared out over " << shard->world_size() << " ranks\n";
[[nodiscard]] ParameterPlacement placement_of(const at::Tensor& parameter);

/// The whole parameter as a new tensor of its sizes, dtype and device, without autograd: what the rows hold. Of a
/// gradient that backward left in `.grad`, the whole gradient; of what element-wise operators made of either outside
/// scopes, such as an optimizer's update, the whole of that. Collective. Throws UsageError for a view of either, and
/// what Work::wait throws.
///
///     auto weight = fsdp::full_tensor(model->head->weight);  // on every rank
[[nodiscard]] at::Tensor full_tensor(const at::Tensor& parameter);
/// The whole gradient, reduced, as a new tensor of the parameter's sizes; undefined if the parameter has none. Outside
/// backward. Collective. Throws UsageError for a gradient that has not the sizes of the rows, and what Work::wait
/// throws.
[[nodiscard]] at::Tensor full_grad(const at::Tensor& parameter);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
