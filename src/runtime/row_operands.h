#pragma once
/// \file
/// Whether what an element-wise operator takes beside the rows of a parameter lines up with them. Pure functions, which
/// decide by the whole parameter's sizes where they can, so that ranks with all rows, some and none decide alike.

#include <ATen/core/Tensor.h>

#include <optional>

#include "runtime/access_rules.h"
#include "runtime/param_group.h"

namespace fsdp::runtime {

/// Where a tensor on the storage of rows, or of their gradient, has them.
struct RowsIn {
  int64_t dim = 0;
  int64_t first = 0, count = 0;  ///< of this rank
  int64_t all = 0;               ///< of the whole parameter
  bool operator==(const RowsIn&) const = default;
};

/// Of the rows themselves and of views that have all of them: transposed, of some columns, flat. None if the tensor has
/// not all rows, or has them in another form.
std::optional<RowsIn> find_rows(const at::Tensor& rows, const ParamSlot& slot);

/// Whether a tensor of the rows' sizes is not a transposed one.
inline bool has_rows_first(const at::Tensor& tensor, const ParamSlot& slot) {
  const auto found = find_rows(tensor, slot);
  return !found || found->dim == 0;
}

/// An ordinary tensor beside rows. It fits if it has their sizes or is broadcast along them; kTakesRows if it has the
/// sizes of the whole parameter, or is broadcast to these, and has to be narrowed to the rows first.
Fit fit_of(const at::Tensor& operand, const at::Tensor& rows, const std::optional<RowsIn>& found);

/// The rows of two parameters, or of a parameter and its gradient. They fit if every rank has the same rows of both.
struct Rows {
  const at::Tensor& tensor;
  ParamGroup& group;
  size_t slot;
  bool is_result = false;  ///< see Note [Results of rows]: of some columns of the rows it has strides of its own
};
Fit fit_of_rows(const Rows& a, const Rows& b);

}  // namespace fsdp::runtime
