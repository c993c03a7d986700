#include "runtime/row_operands.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/irange.h>

#include <mutex>
#include <typeinfo>

#include "runtime/compat.h"

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

// Of the first operand a factory and a view take sizes and memory, of later ones sizes only; x.to(p) is no rows.
bool makes_rows(OperatorKind kind, bool writes, bool is_first, PartKind part) {
  switch (kind) {
    case OperatorKind::kDetach:
    case OperatorKind::kView:
      return part == PartKind::kResult;  // the storage tells of the others
    case OperatorKind::kFactory:
    case OperatorKind::kViewOrCopy:
    case OperatorKind::kClone:
      return is_first;
    case OperatorKind::kCopy:
      return is_first || writes;
    case OperatorKind::kForeach:
    case OperatorKind::kFused:
    case OperatorKind::kPointwise:
      return true;
    default:
      return false;
  }
}

bool is_of_lists(OperatorKind kind) { return kind == OperatorKind::kForeach || kind == OperatorKind::kFused; }

// Null if the tensor is no result.
const RowMark* mark_of(const at::Tensor& tensor) {
  const auto* meta = tensor.unsafeGetTensorImpl()->get_backend_meta();
  return meta != nullptr && typeid(*meta) == typeid(RowMark) ? static_cast<const RowMark*>(meta) : nullptr;
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

void mark_as_rows(const at::Tensor& tensor, const MarkPtr& mark) {
  auto& impl = *tensor.unsafeGetTensorImpl();
  if (impl.get_backend_meta() != nullptr || (is_marked(impl) && registry().find(tensor))) return;
  mark_sharded(impl);
  impl.set_backend_meta(mark);
}

AmongResults among_results(const OperatorTraits& traits, std::span<const c10::IValue> arguments) {
  if (traits.kind != OperatorKind::kPointwise || traits.random) return {};
  const RowMark* mark = nullptr;
  const at::Tensor* first = nullptr;
  for (const auto& argument : arguments) {
    if (argument.isList()) return {};
    if (!argument.isTensor()) continue;
    const auto& tensor = argument.toTensor();
    if (!tensor.defined()) continue;
    if (!is_marked(*tensor.unsafeGetTensorImpl())) {
      if (tensor.dim() > 0) return {};
      continue;
    }
    const auto* found = mark_of(tensor);
    const bool records = at::GradMode::is_enabled() && tensor.requires_grad();
    if (found == nullptr || records || (mark != nullptr && found != mark)) return {};
    if (first != nullptr && (tensor.sizes() != first->sizes() || tensor.strides() != first->strides())) return {};
    mark = found;
    first = &tensor;
  }
  if (mark == nullptr) return {};
  if (traits.written_arguments != 0) return {.holds = traits.writes(0)};
  const auto group = mark->group.lock();
  if (!group) return {};
  const std::lock_guard lock(group->rank_state().mutex);
  if (group->local_rows_depth > 0) return {.holds = true};
  return {.holds = true, .made = first->unsafeGetTensorImpl()->get_backend_meta_intrusive_ptr()};
}

std::optional<Part> part_of(const at::Tensor& tensor) {
  const auto* mark = mark_of(tensor);
  if (mark == nullptr) return registry().find(tensor);
  auto group = mark->group.lock();
  if (!group) return std::nullopt;
  return Part{std::move(group), mark->slot, PartKind::kResult};
}

void RowResults::add(const OperatorCall& call, const OperatorCall::Operand& operand, const Part& part) {
  const auto kind = call.traits.kind;
  if (!makes_rows(kind, call.traits.written_arguments != 0, operand.argument == 0, part.kind)) return;
  if (part.group->placement().shard().world_size() == 1 || part.group->local_rows_depth > 0) return;
  // new_zeros and its kin take sizes from the caller, so their result need not have rows.
  if (kind == OperatorKind::kFactory && call.op.operator_name().name.starts_with("aten::new_")) return;
  of_lists_ = is_of_lists(kind);
  const size_t element = of_lists_ ? operand.element : 0;
  if (marks_.size() <= element) marks_.resize(element + 1);
  if (!marks_[element]) marks_[element] = part.group->slots()[part.slot].mark;
}

void RowResults::add_written(const OperatorCall& call) {
  for (const auto& [tensor, argument, element] : call.tensors) {
    const size_t i = of_lists_ ? element : 0;
    if (i >= marks_.size() || !marks_[i] || !call.traits.writes(argument)) continue;
    // Tensors without dims are step counts of fused optimizers.
    if (tensor->dim() > 0 && !is_marked(*tensor->unsafeGetTensorImpl())) written_.push_back({*tensor, marks_[i]});
  }
}

void RowResults::mark_made(const at::Tensor& result, size_t element) const {
  const size_t i = of_lists_ ? element : 0;  // all results of one operand, such as those of split, have its mark
  if (i < marks_.size() && marks_[i]) mark_as_rows(result, marks_[i]);
}

void RowResults::mark_written() const {
  for (const auto& [tensor, mark] : written_) mark_as_rows(tensor, mark);
}

}  // namespace fsdp::runtime
