#include "runtime/compute_dtype.h"

#include "comm/core/check.h"
#include "runtime/compat.h"

namespace fsdp::runtime {
namespace {

bool stays_as_it_is(const c10::Argument& argument) {
  return argument.alias_info() != nullptr || argument.name() == "running_mean" || argument.name() == "running_var";
}

}  // namespace

void ComputeDtype::add(const ParamGroup& group, const ParamSlot& slot) {
  const auto dtype = slot.whole_tensor.scalar_type();
  if (!c10::isFloatingType(dtype)) return;
  casts_ |= slot.precision() && slot.precision()->casts_operands;
  if (first_.group == nullptr)
    first_ = {&group, &slot, dtype};
  else if (dtype != first_.dtype)
    other_ = {&group, &slot, dtype};
}

void ComputeDtype::cast_others(const OperatorCall& call, std::vector<Replacement>& replacements) const {
  using enum OperatorKind;
  if (!casts_ || !is_one_of(call.traits.kind, {kPointwise, kForeach, kOther})) return;
  if (other_.group != nullptr)
    require(false, first_.group->where(call.op.operator_name().name), "expected parameters of one dtype, found '",
            first_.slot->name(), "' (group '", first_.group->name(), "') in ", first_.dtype, " and '",
            other_.slot->name(), "' (group '", other_.group->name(), "') in ", other_.dtype,
            ". Give both one MixedPrecisionPolicy::param_dtype, or have keeps_precision keep both or neither");
  const auto& schema = call.op.schema().arguments();
  for (const auto& operand : call.tensors) {
    const auto& tensor = *operand.tensor;
    if (!tensor.is_floating_point() || tensor.scalar_type() == first_.dtype || tensor.dim() == 0) continue;
    if (is_marked(*tensor.unsafeGetTensorImpl()) || stays_as_it_is(schema[operand.argument])) continue;
    replacements.push_back({operand, tensor.to(first_.dtype)});
  }
}

}  // namespace fsdp::runtime
