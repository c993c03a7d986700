#include "runtime/row_operands.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <typeinfo>

#include "runtime/compat.h"

namespace fsdp::runtime {
namespace {

// Returns true if the rows of both slots join the same dims of the same sizes, or no dims. Otherwise equal indices mean
// different rows.
bool join_the_same_dims(const ParamSlot& in_a, const ParamSlot& in_b) {
  const auto joined = in_a.joined_dims();
  if (joined < 2 && in_b.joined_dims() < 2) return true;
  return joined == in_b.joined_dims() && in_a.sizes().size() == in_b.sizes().size() &&
         in_a.sizes().slice(0, joined) == in_b.sizes().slice(0, joined);
}

bool every_rank_has_the_same_rows(const Part& a, const Part& b) {
  const int world = a.group->placement().shard().world_size();
  if (world != b.group->placement().shard().world_size()) return false;
  for (const int rank : c10::irange(world))
    if (a.group->params().rows_of(a.slot, rank) != b.group->params().rows_of(b.slot, rank)) return false;
  return true;
}

// Returns true if the operator's result has rows of the operand. A factory takes sizes, and a copy values, only from
// the first operand, so the result of x.to(p) has no rows of p.
bool makes_rows(OperatorKind kind, bool writes, bool is_first, PartKind part) {
  using enum OperatorKind;
  if (is_one_of(kind, {kDetach, kView})) return part == PartKind::kResult;  // others are found by their storage
  if (is_one_of(kind, {kFactory, kViewOrCopy, kClone})) return is_first;
  if (kind == kCopy) return is_first || writes;
  return is_one_of(kind, {kForeach, kFused, kPointwise});
}

const RowMark* mark_of(const at::Tensor& tensor) {
  const auto* meta = tensor.unsafeGetTensorImpl()->get_backend_meta();
  return meta != nullptr && typeid(*meta) == typeid(RowMark) ? static_cast<const RowMark*>(meta) : nullptr;
}

// Returns how an ordinary tensor fits rows: kFits if it has their sizes or is broadcast along them; kTakesRows if it
// has the whole parameter's sizes, or is broadcast to these, and must be narrowed to the rows first.
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

// Returns how two tensors of rows fit, for example the rows of two parameters, or of a parameter and its gradient. They
// fit if every rank has the same rows of both.
Fit fit_of_rows(const at::Tensor& a, const Part& part_a, const at::Tensor& b, const Part& part_b) {
  const auto &slot_a = part_a.group->slots()[part_a.slot], &slot_b = part_b.group->slots()[part_b.slot];
  const bool same_slot = &slot_a == &slot_b, same_sizes = a.sizes() == b.sizes();
  if (same_slot && same_sizes && a.strides() == b.strides()) return Fit::kFits;
  const auto in_a = find_rows(a, slot_a), in_b = find_rows(b, slot_b);
  const auto& known = in_a ? in_a : in_b;
  // A result that was computed from some columns of the rows has other strides than the rows.
  const bool is_of_columns = in_a ? !in_b && part_b.kind == PartKind::kResult : part_a.kind == PartKind::kResult;
  if (same_slot && same_sizes && is_of_columns && (!known || known->dim == 0)) return Fit::kFits;
  if (in_a != in_b || a.dim() != b.dim()) return Fit::kMisfits;
  if (!in_a) return same_sizes ? Fit::kFits : Fit::kMisfits;
  for (const auto dim : c10::irange(a.dim()))
    if (a.size(dim) != b.size(dim) && (dim == in_a->dim || (a.size(dim) != 1 && b.size(dim) != 1)))
      return Fit::kMisfits;
  const bool counts_alike =
      same_slot || (join_the_same_dims(slot_a, slot_b) && every_rank_has_the_same_rows(part_a, part_b));
  return counts_alike ? Fit::kFits : Fit::kMisfits;
}

template <class Visit>
void visit_others(const OperatorCall& call, const OperatorCall::Operand& operand, const Visit& visit) {
  if (call.traits.kind != OperatorKind::kForeach) {
    for (const auto& other : call.tensors)
      if (other.tensor != operand.tensor) visit(other);
    return;
  }
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    const auto& argument = call.arguments[i];
    if (argument.isTensor() && argument.toTensor().defined()) visit(OperatorCall::Operand{&argument.toTensor(), i});
    if (!argument.isTensorList() || i == operand.argument) continue;
    const auto list = argument.toListRef();
    if (operand.element < list.size())
      visit(OperatorCall::Operand{&list[operand.element].toTensor(), i, operand.element});
  }
}

// For a parameter whose rows join several dims: joins the same dims of an operand that is broadcast to the whole
// parameter. Later dims keep their sizes, so an operand with one element for each row stays that small. Returns an
// undefined tensor if the operand cannot be broadcast or rows join no dims.
at::Tensor with_joined_dims(const at::Tensor& operand, const ParamSlot& slot) {
  const auto behind = slot.row_sizes().size() - 1;
  const auto sizes = operand.sizes();
  if (slot.joined_dims() < 2 || sizes.size() <= behind || !at::is_expandable_to(sizes, slot.sizes())) return {};
  auto expanded = slot.sizes().vec(), joined = slot.row_sizes().vec();
  std::copy_n(sizes.end() - static_cast<ptrdiff_t>(behind), behind, expanded.end() - static_cast<ptrdiff_t>(behind));
  std::copy_n(sizes.end() - static_cast<ptrdiff_t>(behind), behind, joined.begin() + 1);
  const c10::impl::ExcludeDispatchKeyGuard own_operators(kShardedKey);
  return operand.expand(expanded).reshape(joined);
}

// For a parameter whose rows join several dims: returns true if an operand has the sizes of this rank's rows but can
// also be broadcast to the whole parameter. Ranks with other numbers of rows would read it differently.
bool may_be_whole(const at::Tensor& operand, const ParamSlot& slot) {
  const auto sizes = operand.sizes();
  return slot.joined_dims() > 1 && operand.numel() > 1 && sizes == slot.rows_tensor.sizes() &&
         sizes.size() == slot.row_sizes().size() && at::is_expandable_to(sizes, slot.sizes());
}

}  // namespace

std::optional<RowsIn> find_rows(const at::Tensor& rows, const ParamSlot& slot) {
  const auto& shown = slot.rows_tensor;
  const auto [first, count] = slot.rows();
  const int64_t all = slot.row_sizes()[0];
  // The stride shows which dim has the rows: select(1, 0) keeps that dim, select(0, 0) removes it.
  if (rows.dim() <= shown.dim())
    for (const auto dim : c10::irange(rows.dim()))
      if (rows.size(dim) == count && rows.stride(dim) == shown.stride(0)) return RowsIn{dim, first, count, all};
  if (rows.dim() != 1 || rows.stride(0) != 1 || rows.numel() != slot.rows_numel()) return std::nullopt;
  const auto row = slot.row_numel();
  return RowsIn{0, first * row, count * row, all * row};
}

std::pair<Fit, const at::Tensor*> fit_of_others(const OperatorCall& call, const OperatorCall::Operand& operand,
                                                const Part& own, std::vector<Replacement>& replacements) {
  const auto& slot = own.group->slots()[own.slot];
  const auto& rows = *operand.tensor;
  std::pair<Fit, const at::Tensor*> worst{Fit::kFits, nullptr};
  visit_others(call, operand, [&](const OperatorCall::Operand& other) {
    const auto part = is_marked(*other.tensor->unsafeGetTensorImpl()) ? part_of(*other.tensor) : std::nullopt;
    Fit fit = Fit::kFits;
    if (part && part->kind != PartKind::kWhole) {
      fit = fit_of_rows(rows, own, *other.tensor, *part);
    } else if (part && &part->group->slots()[part->slot] == &slot) {
      fit = Fit::kMisfits;  // in a scope the operator takes the whole parameter and the rows of its gradient
    } else if (!part && may_be_whole(*other.tensor, slot)) {
      fit = Fit::kMisfits;
    } else if (other.tensor->sizes() != rows.sizes()) {
      const auto found = find_rows(rows, slot);
      const auto joined = with_joined_dims(*other.tensor, slot);
      const auto& whole = joined.defined() ? joined : *other.tensor;
      fit = call.traits.writes(other.argument) ? Fit::kWrittenFromRows : fit_of(whole, rows, found);
      // The operand must be replaced by `joined`, which has other sizes, even if this rank has all rows.
      if (joined.defined() && fit == Fit::kFits && found) fit = Fit::kTakesRows;
      // The operand fits the joined sizes of the rows, but not the parameter's sizes.
      if (slot.joined_dims() > 1 && !joined.defined() && rows.dim() > 1 && fit == Fit::kTakesRows) fit = Fit::kMisfits;
      if (fit == Fit::kTakesRows) {
        const c10::impl::ExcludeDispatchKeyGuard own_operators(kShardedKey);
        const auto dim = found->dim - (rows.dim() - whole.dim());
        replacements.push_back({other, whole.narrow(dim, found->first, found->count)});
      }
    }
    if (fit > worst.first) worst = {fit, other.tensor};
  });
  return worst;
}

void mark_as_rows(const at::Tensor& tensor, const MarkPtr& mark) {
  auto& impl = *tensor.unsafeGetTensorImpl();
  if (impl.get_backend_meta() != nullptr || (is_marked(impl) && registry().find(tensor))) return;
  add_key(impl, kShardedKey);
  impl.set_backend_meta(mark);
}

std::optional<MarkPtr> among_results(const OperatorTraits& traits, std::span<const c10::IValue> arguments) {
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
  if (traits.written_arguments != 0) return traits.writes(0) ? std::optional(MarkPtr()) : std::nullopt;
  const auto group = mark->group.lock();
  if (!group) return {};
  const MutexLock lock(group->rank_state().mutex);
  return group->local_rows_depth > 0 ? MarkPtr() : first->unsafeGetTensorImpl()->get_backend_meta_intrusive_ptr();
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
  // new_zeros and similar operators get sizes from the caller, so their results are ordinary tensors.
  if (kind == OperatorKind::kFactory && call.op.operator_name().name.starts_with("aten::new_")) return;
  of_lists_ = is_one_of(kind, {OperatorKind::kForeach, OperatorKind::kFused});
  const size_t element = of_lists_ ? operand.element : 0;
  if (marks_.size() <= element) marks_.resize(element + 1);
  if (!marks_[element]) marks_[element] = part.group->slots()[part.slot].mark;
}

void RowResults::add_written(const OperatorCall& call) {
  for (const auto& [tensor, argument, element] : call.tensors) {
    const size_t i = of_lists_ ? element : 0;
    if (i >= marks_.size() || !marks_[i] || !call.traits.writes(argument)) continue;
    // Tensors without dims are skipped: they are the step counts of fused optimizers.
    if (tensor->dim() > 0 && !is_marked(*tensor->unsafeGetTensorImpl())) written_.push_back({*tensor, marks_[i]});
  }
}

void RowResults::mark_made(const at::Tensor& result, size_t element) const {
  const size_t i = of_lists_ ? element : 0;  // without lists all results, such as those of split, have one mark
  if (i < marks_.size() && marks_[i]) mark_as_rows(result, marks_[i]);
}

void RowResults::mark_written() const {
  for (const auto& [tensor, mark] : written_) mark_as_rows(tensor, mark);
}

void ComputeDtype::add(const ParamSlot& slot) {
  const auto dtype = slot.whole_tensor.scalar_type();
  if (!c10::isFloatingType(dtype)) return;
  casts_ |= slot.precision() && slot.precision()->casts_operands;
  if (!dtype_) dtype_ = dtype;
}

void ComputeDtype::cast_others(const OperatorCall& call, std::vector<Replacement>& replacements) const {
  using enum OperatorKind;
  if (!casts_ || !is_one_of(call.traits.kind, {kPointwise, kForeach, kOther})) return;
  const auto& schema = call.op.schema().arguments();
  for (const auto& operand : call.tensors) {
    const auto& tensor = *operand.tensor;
    if (!tensor.is_floating_point() || tensor.scalar_type() == *dtype_ || tensor.dim() == 0) continue;
    const auto& argument = schema[operand.argument];
    const bool is_statistic = argument.name() == "running_mean" || argument.name() == "running_var";
    if (is_marked(*tensor.unsafeGetTensorImpl()) || argument.alias_info() || is_statistic) continue;
    replacements.push_back({operand, tensor.to(*dtype_)});
  }
}

}  // namespace fsdp::runtime
