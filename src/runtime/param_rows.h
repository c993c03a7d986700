#pragma once
/// \file
/// This rank's rows of one parameter, for those who need not know of groups: printing, optimizers, checkpoints; and
/// where rows have their values from.

#include <ATen/core/Tensor.h>

#include <functional>
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
  /// Whether the parameter is a part of a whole tensor, see ParamSlot::cut.
  bool is_cut = false;

  int64_t row_numel() const { return c10::multiply_integers(row_sizes.slice(1)); }
};

/// Fills `wanted.values`: from a tensor, a file's range, or by computing them from the name and the rows' numbers.
/// Asked once for each parameter, on the ranks that have rows of it, which need not take part in the same order.
using RowSource = std::function<void(const ParamRows& wanted)>;

/// Copies them out of a tensor of the parameter's sizes, on any device. A value that was put off is computed, and gone
/// when the rows are copied.
RowSource rows_of_tensor(at::Tensor whole);

}  // namespace fsdp::runtime
