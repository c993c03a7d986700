#include "runtime/conversion.h"

#include <ATen/core/Tensor.h>

#include <string_view>

namespace fsdp::runtime {
namespace {

bool keeps_device(const at::Tensor& tensor, c10::Device device) {
  return device.type() == tensor.device().type() && (!device.has_index() || device == tensor.device());
}

// Whether the tensor is already what the argument asks for.
bool keeps(const at::Tensor& tensor, std::string_view name, const c10::IValue& value) {
  if (name == "dtype") return value.toScalarType() == tensor.scalar_type();
  if (name == "layout") return value.toLayout() == tensor.layout();
  if (name == "device") return keeps_device(tensor, value.toDevice());
  if (name == "copy" || name == "pin_memory") return !value.toBool();
  if (name == "memory_format")
    return value.toMemoryFormat() == at::MemoryFormat::Preserve || tensor.is_contiguous(value.toMemoryFormat());
  if (name == "other" || name == "from") {
    const auto& other = value.toTensor();
    if (name == "from") return other.is_same(tensor);
    return other.scalar_type() == tensor.scalar_type() && other.device() == tensor.device();
  }
  return name == "non_blocking";
}

}  // namespace

Conversion conversion_of(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments) {
  const auto& name = op.operator_name();
  const auto& schema = op.schema().arguments();
  if (name.name == "aten::to" && name.overload_name == "device" && arguments[1].toDevice().is_cpu() &&
      arguments[2].toScalarType() == at::kDouble && !arguments[3].toBool() && !arguments[4].toBool() &&
      arguments[5].isNone())
    return Conversion::kPrints;
  if (name.name != "aten::to" && name.name != "aten::contiguous" && name.name != "aten::lift_fresh" &&
      name.name != "aten::_has_compatible_shallow_copy_type")
    return Conversion::kConverts;
  for (size_t i = 1; i < arguments.size(); ++i)
    if (!arguments[i].isNone() && !keeps(arguments[0].toTensor(), schema[i].name(), arguments[i]))
      return Conversion::kConverts;
  return Conversion::kNothing;
}

}  // namespace fsdp::runtime
