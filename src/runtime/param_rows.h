#pragma once
/// \file
/// This rank's rows of one parameter, for those who need not know of groups: printing, optimizers, checkpoints.

#include <ATen/core/Tensor.h>

#include <string>

#include "layout/planes.h"

namespace fsdp::runtime {

/// Valid while the group is there.
struct ParamRows {
  const std::string& name;
  /// The sizes of the unsharded parameter.
  c10::IntArrayRef sizes;
  /// The sizes by which its rows count: `sizes`, of a scalar [1], with some first dims taken together where its rows
  /// are shorter than those of dim 0 (see Note [Planes]).
  c10::IntArrayRef row_sizes;
  /// Indices of dim 0 of `row_sizes`.
  layout::RowRange range;
  /// The rows, of sizes [range.count, row_sizes[1], ...] on their device.
  at::Tensor values;
  /// What everybody holds; undefined when nobody does any more.
  at::Tensor parameter;

  int64_t row_numel() const { return c10::multiply_integers(row_sizes.slice(1)); }
};

}  // namespace fsdp::runtime
