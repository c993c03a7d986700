#include "runtime/row_results.h"

#include <ATen/core/grad_mode.h>

#include <mutex>
#include <typeinfo>

#include "runtime/compat.h"
#include "runtime/param_group.h"

namespace fsdp::runtime {
namespace {

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
