#include "support/checked_device/operation.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/checked_device/cpu_aliases.h"
#include "support/checked_device/device_guard.h"
#include "support/checked_device/findings.h"
#include "support/checked_device/host_memory.h"
#include "support/checked_device/timeline.h"

namespace fsdp::test::checked {
namespace {

constexpr auto kKey = c10::DispatchKey::PrivateUse1;

using Map = std::function<at::Tensor(const at::Tensor&)>;

// Returns the value with each of its tensors, including those inside lists, replaced by `map`.
c10::IValue replaced(const c10::IValue& value, const Map& map) {
  if (value.isTensor()) return map(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const auto& tensor : value.toTensorVector()) list.push_back(map(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& tensor : value.toOptionalTensorVector())
      list.push_back(tensor ? std::optional(map(*tensor)) : std::nullopt);
    return list;
  }
  if (value.isDevice() && value.toDevice().type() == kType) return c10::Device(c10::kCPU);
  return value;
}

void visit(const c10::IValue& value, const std::function<void(const at::Tensor&)>& see) {
  replaced(value, [&](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.is_privateuseone()) see(tensor);
    return tensor;
  });
}

// Returns true if the host learns a result from the operator, and so has to wait for the device's stream.
bool tells_the_host(const c10::OperatorHandle& op) {
  if (op.hasTag(at::Tag::dynamic_output_shape)) return true;
  return std::ranges::any_of(op.schema().returns(), [](const c10::Argument& result) {
    const auto kind = result.type()->kind();
    return kind == c10::TypeKind::BoolType || kind == c10::TypeKind::IntType || kind == c10::TypeKind::FloatType ||
           kind == c10::TypeKind::NumberType;
  });
}

bool is_view(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.returns(), [](const c10::Argument& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

// Returns the device of the operands, or the device that was given to a factory function.
c10::Device device_of(std::span<const c10::IValue> arguments, const std::vector<Operand>& operands,
                      const std::string& name) {
  if (!operands.empty()) {
    const auto device = operands.front().tensor.device();
    for (const auto& operand : operands)
      TORCH_CHECK(operand.tensor.device() == device, name, ": tensors on ", device, " and ", operand.tensor.device());
    return device;
  }
  for (const auto& argument : arguments)
    if (argument.isDevice() && argument.toDevice().has_index()) return argument.toDevice();
  return c10::impl::VirtualGuardImpl(kType).getDevice();
}

void require_current(c10::Device device, const std::string& name) {
  const c10::impl::VirtualGuardImpl devices(kType);
  const auto current = devices.getDevice();
  if (current == device) return;
  report(Fault::kWrongDevice, c10::str(current, " is the current device"), place_of(name, devices.getStream(device)),
         c10::str("Make ", device, " the current device of the thread"));
}

void run_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const std::string name = schema.operator_name().overload_name.empty()
                               ? schema.name()
                               : schema.name() + '.' + schema.operator_name().overload_name;
  auto arguments = std::span(*stack).last(schema.arguments().size());
  std::vector<Operand> operands;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    const bool writes = alias != nullptr && alias->isWrite();
    visit(arguments[i], [&](const at::Tensor& tensor) { operands.push_back({tensor, writes}); });
  }
  const c10::Device device = device_of(arguments, operands, name);
  require_current(device, name);
  const c10::DeviceGuard guard(device);
  CpuAliases aliases;
  for (auto& argument : arguments)
    argument = replaced(argument, [&](const at::Tensor& tensor) { return aliases.of(tensor); });
  for (size_t i = 0; i < arguments.size(); ++i)
    if (schema.arguments()[i].name() == "generator" && arguments[i].isNone())
      arguments[i] = at::globalContext().defaultGenerator(device);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  aliases.finish();
  for (auto& result : std::span(*stack).last(schema.returns().size())) {
    result = replaced(result, [&](const at::Tensor& tensor) { return aliases.back(tensor, device); });
    visit(result, [&](const at::Tensor& tensor) { operands.push_back({tensor, true}); });
  }
  if (is_view(schema)) return;
  const auto stream = c10::impl::VirtualGuardImpl(kType).getStream(device);
  note_operation(name, stream, operands);
  if (tells_the_host(op)) note_host_wait(name, stream);
}

bool is_compatible(const at::Tensor&, const at::Tensor&) { return true; }

at::Tensor empty(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                 std::optional<c10::Device> device, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(sizes, c10::GetAllocator(kType), c10::DispatchKeySet(kKey),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<c10::ScalarType> dtype,
                         std::optional<c10::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(sizes, strides, c10::GetAllocator(kType), c10::DispatchKeySet(kKey),
                                           c10::dtype_or_default(dtype));
}

// Notes a copy between the device and pinned host memory that runs asynchronously to the host.
void note_beside(const at::Tensor& on_host, bool writes, Stamp stamp, std::string place) {
  std::lock_guard lock(device_mutex());
  auto* begin = static_cast<char*>(on_host.mutable_data_ptr());
  auto& memory = HostMemory::get();
  writes ? memory.write(begin, on_host.nbytes(), stamp, std::move(place))
         : memory.read(begin, on_host.nbytes(), stamp, std::move(place));
}

// The host waits where CUDA's copies make it wait. It waits for a copy from or to host memory unless the copy may be
// non-blocking, and always for a copy from a device to memory that is not pinned. A copy from unpinned memory has read
// the values before the host goes on.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const bool to_host = to.is_cpu(), from_host = from.is_cpu();
  const auto device = to_host ? from.device() : to.device();
  TORCH_CHECK(to_host || from_host || from.device() == device, "copies from ", from.device(), " to ", device,
              " are not implemented");
  require_current(device, "copy");
  const c10::DeviceGuard guard(device);
  const auto stream = c10::impl::VirtualGuardImpl(kType).getStream(device);
  if (from_host) {
    const std::lock_guard lock(device_mutex());
    HostMemory::get().bring(static_cast<const char*>(from.const_data_ptr()), from.nbytes(), Timeline::get().of(stream));
  }
  CpuAliases aliases;
  aliases.of(to).copy_(aliases.of(from));
  const std::string name = to_host ? "copy to the host" : from_host ? "copy from the host" : "copy";
  const Operand operands[] = {{from, false}, {to, true}};
  const Stamp stamp = note_operation(name, stream, operands);
  if (!to_host && !from_host) return to;
  const auto& on_host = to_host ? to : from;
  const bool is_pinned = on_host.is_non_overlapping_and_dense() && from.strides() == to.strides() &&
                         from.dtype() == to.dtype() && HostMemory::get().is_pinned(on_host.const_data_ptr());
  if (non_blocking && is_pinned)
    note_beside(on_host, to_host, stamp, place_of(name, stream));
  else if (to_host || !non_blocking)
    note_host_wait(name, stream);
  return to;
}

}  // namespace

void register_operators() {
  // The library is never destroyed, because tensors that outlive main() still dispatch.
  static auto* const any = new torch::Library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
  any->fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  static auto* const own = new torch::Library(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
  own->impl("empty.memory_format", &empty);
  own->impl("empty_strided", &empty_strided);
  own->impl("_copy_from", &copy_from);
  own->impl("_has_compatible_shallow_copy_type", &is_compatible);
  own->impl("as_strided", &at::native::as_strided_tensorimpl);
  own->impl("view", &at::native::view);
  own->impl("_reshape_alias", &at::native::_reshape_alias);
  own->impl("set_.source_Storage", static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(&at::native::set_));
  own->impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  own->impl("set_.source_Tensor", &at::native::set_tensor_);
}

}  // namespace fsdp::test::checked
