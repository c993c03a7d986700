#include "runtime/row_operands.h"

#include <c10/util/irange.h>

namespace fsdp::runtime {
namespace {

// Rows that take first dims together count alike only if these dims are alike.
bool join_the_same_dims(const Rows& a, const Rows& b) {
  const auto &in_a = a.group.slots()[a.slot], &in_b = b.group.slots()[b.slot];
  const auto joined = in_a.joined_dims();
  if (joined < 2 && in_b.joined_dims() < 2) return true;
  return joined == in_b.joined_dims() && in_a.sizes().size() == in_b.sizes().size() &&
         in_a.sizes().slice(0, joined) == in_b.sizes().slice(0, joined);
}

bool every_rank_has_the_same_rows(const Rows& a, const Rows& b) {
  const int world = a.group.placement().shard().world_size();
  if (world != b.group.placement().shard().world_size()) return false;
  for (const int rank : c10::irange(world))
    if (a.group.params().rows_of(a.slot, rank) != b.group.params().rows_of(b.slot, rank)) return false;
  return true;
}

}  // namespace

std::optional<RowsIn> find_rows(const at::Tensor& rows, const ParamSlot& slot) {
  const auto& shown = slot.rows_tensor;
  const auto [first, count] = slot.rows();
  const int64_t all = slot.row_sizes()[0];
  // The stride tells: select(1, 0) keeps the dimension of rows, select(0, 0) does not.
  if (rows.dim() <= shown.dim())
    for (const auto dim : c10::irange(rows.dim()))
      if (rows.size(dim) == count && rows.stride(dim) == shown.stride(0)) return RowsIn{dim, first, count, all};
  if (rows.dim() != 1 || rows.stride(0) != 1 || rows.numel() != slot.rows_numel()) return std::nullopt;
  const auto row = slot.row_numel();
  return RowsIn{0, first * row, count * row, all * row};
}

Fit fit_of(const at::Tensor& operand, const at::Tensor& rows, const std::optional<RowsIn>& found) {
  if (operand.sizes() == rows.sizes() || operand.numel() == 1) return Fit::kFits;
  const auto broadcast_dims = rows.dim() - operand.dim();
  if (!found || broadcast_dims < 0) return Fit::kMisfits;
  auto fit = Fit::kFits;
  for (const auto i : c10::irange(operand.dim())) {
    const auto size = operand.size(i), dim = i + broadcast_dims;
    if (size == rows.size(dim) || size == 1) continue;
    if (dim != found->dim || size != found->all) return Fit::kMisfits;
    fit = Fit::kTakesRows;
  }
  return fit;
}

Fit fit_of_rows(const Rows& a, const Rows& b) {
  const bool same_slot = &a.group == &b.group && a.slot == b.slot;
  const bool same_sizes = a.tensor.sizes() == b.tensor.sizes();
  if (same_slot && same_sizes && a.tensor.strides() == b.tensor.strides()) return Fit::kFits;
  const auto in_a = find_rows(a.tensor, a.group.slots()[a.slot]), in_b = find_rows(b.tensor, b.group.slots()[b.slot]);
  const auto& known = in_a ? in_a : in_b;
  const bool is_of_columns = in_a ? !in_b && b.is_result : a.is_result;
  if (same_slot && same_sizes && is_of_columns && (!known || known->dim == 0)) return Fit::kFits;
  if (in_a != in_b || a.tensor.dim() != b.tensor.dim()) return Fit::kMisfits;
  if (!in_a) return same_sizes ? Fit::kFits : Fit::kMisfits;
  for (const auto dim : c10::irange(a.tensor.dim())) {
    const auto size_a = a.tensor.size(dim), size_b = b.tensor.size(dim);
    if (size_a != size_b && (dim == in_a->dim || (size_a != 1 && size_b != 1))) return Fit::kMisfits;
  }
  const bool counts_alike = same_slot || (join_the_same_dims(a, b) && every_rank_has_the_same_rows(a, b));
  return counts_alike ? Fit::kFits : Fit::kMisfits;
}

}  // namespace fsdp::runtime
