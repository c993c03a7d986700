#pragma once
/// \file
/// This rank's rows of one parameter, for those who need not know of groups: printing, optimizers, checkpoints.

#include <ATen/core/Tensor.h>

#include <string>

#include "layout/row_layout.h"

namespace fsdp::runtime {

/// Valid while the group is there.
struct ParamRows {
  const std::string& name;
  /// Of the whole parameter. A scalar has none, and one row.
  c10::IntArrayRef sizes;
  /// Indices of dim 0.
  layout::RowRange range;
  /// The rows, of sizes [range.count, sizes[1], ...] on their device; a scalar's are [range.count].
  at::Tensor values;
  /// What everybody holds; undefined when nobody does any more.
  at::Tensor parameter;

  int64_t row_numel() const { return sizes.empty() ? 1 : c10::multiply_integers(sizes.slice(1)); }
};

}  // namespace fsdp::runtime
