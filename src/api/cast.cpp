#include <fsdp/cast.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <fsdp/group.h>

#include <mutex>
#include <vector>

#include "api/group_view.h"
#include "comm/core/check.h"
#include "runtime/param_group.h"

namespace fsdp {
namespace {

c10::IValue cast_copy(const c10::IValue& value, at::ScalarType dtype);

c10::IValue cast_list(const c10::IValue& value, at::ScalarType dtype) {
  auto copy = value.toList().copy();
  for (size_t i = 0; i < copy.size(); ++i) copy.set(i, cast_copy(copy.get(i), dtype));
  return copy;
}

c10::IValue cast_dict(const c10::IValue& value, at::ScalarType dtype) {
  auto copy = value.toGenericDict().copy();
  for (const auto& entry : copy) entry.setValue(cast_copy(entry.value(), dtype));
  return copy;
}

// A named tuple stays one.
c10::IValue cast_tuple(const c10::IValue& value, at::ScalarType dtype) {
  const auto& tuple = value.toTupleRef();
  std::vector<c10::IValue> elements;
  for (const auto& element : tuple.elements()) elements.push_back(cast_copy(element, dtype));
  return c10::ivalue::Tuple::createNamed(std::move(elements), tuple.type());
}

c10::IValue cast_copy(const c10::IValue& value, at::ScalarType dtype) {
  if (value.isTensor()) {
    auto tensor = value.toTensor();
    cast_floating(tensor, dtype);
    return tensor;
  }
  if (value.isList()) return cast_list(value, dtype);
  if (value.isGenericDict()) return cast_dict(value, dtype);
  if (value.isTuple()) return cast_tuple(value, dtype);
  return value;
}

}  // namespace

void cast_floating(at::Tensor& tensor, at::ScalarType dtype) {
  if (tensor.defined() && tensor.is_floating_point() && tensor.scalar_type() != dtype) tensor = tensor.to(dtype);
}

void cast_floating(c10::IValue& value, at::ScalarType dtype) { value = cast_copy(value, dtype); }

CallCasts call_casts(const Group& group) {
  const auto& own = *param_groups(group).front();
  std::lock_guard lock(own.rank_state().mutex);
  return {own.policy.input_dtype, own.policy.output_dtype};
}

void refuse_reference_result(const Group& group) {
  const auto& own = *param_groups(group).front();
  throw UsageError(own.where("forward") + "forward of '" + own.name() +
                   "' returns a reference, which may refer to an argument that its MixedPrecisionPolicy casts, and "
                   "cannot be cast itself. Return a value, or call the module in a ForwardScope");
}

}  // namespace fsdp
