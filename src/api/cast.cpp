#include <fsdp/cast.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <fsdp/group.h>

#include <vector>

#include "api/group_view.h"
#include "comm/core/check.h"
#include "runtime/param_group.h"

namespace fsdp {
namespace {

using Visit = std::function<void(at::Tensor&)>;

// Returns a copy of the value in which `visit` has changed each tensor. The copy of a named tuple is a named tuple.
c10::IValue visited_copy(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    auto tensor = value.toTensor();
    visit(tensor);
    return tensor;
  }
  if (value.isList()) {
    auto copy = value.toList().copy();
    for (size_t i = 0; i < copy.size(); ++i) copy.set(i, visited_copy(copy.get(i), visit));
    return copy;
  }
  if (value.isGenericDict()) {
    auto copy = value.toGenericDict().copy();
    for (const auto& entry : copy) entry.setValue(visited_copy(entry.value(), visit));
    return copy;
  }
  if (value.isTuple()) {
    std::vector<c10::IValue> elements;
    for (const auto& element : value.toTupleRef().elements()) elements.push_back(visited_copy(element, visit));
    return c10::ivalue::Tuple::createNamed(std::move(elements), value.toTupleRef().type());
  }
  return value;
}

}  // namespace

void detail::visit_ivalue(c10::IValue& value, const Visit& visit) { value = visited_copy(value, visit); }

void cast_floating(at::Tensor& tensor, at::ScalarType dtype) {
  if (tensor.defined() && tensor.is_floating_point() && tensor.scalar_type() != dtype) tensor = tensor.to(dtype);
}

CallCasts call_casts(const Group& group) {
  const auto& own = *param_groups(group).front();
  const MutexLock lock(own.rank_state().mutex);
  return {own.policy.input_dtype, own.policy.output_dtype};
}

}  // namespace fsdp
