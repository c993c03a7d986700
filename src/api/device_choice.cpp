#include "api/device_choice.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "comm/core/check.h"
#include "runtime/deferred_value.h"
#include "runtime/registry.h"

namespace fsdp {

c10::Device with_index(c10::Device device) {
  if (device.has_index() || device.is_cpu() || device.is_meta()) return device;
  return c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

c10::Device choose_device(const FullyShardOptions& options, c10::Device found, c10::Device of_ranks) {
  if (found.is_meta()) return found;  // fsdp::to_empty says it
  if (options.device) return with_index(*options.device);
  return options.offload_policy && found.is_cpu() ? of_ranks : found;
}

void require_device(c10::Device device, const std::string& where) {
  require(!device.is_meta(), where, "expected a device with memory, found meta. Name the CPU or an accelerator");
  if (device.is_cpu()) return;
  const bool is_known = c10::impl::hasDeviceGuardImpl(device.type());
  const int count = is_known ? c10::impl::getDeviceGuardImpl(device.type())->deviceCount() : 0;
  require(device.index() < count && count > 0, where, "expected a device of this process, found ", device, " (",
          c10::DeviceTypeName(device.type(), /*lower_case=*/true), " has ", count,
          " here). Name another one, show the process its devices (CUDA_VISIBLE_DEVICES), or use a LibTorch that was "
          "built for it");
}

void check_devices(const FullyShardOptions& options, const ModuleNode& tree, c10::Device of_ranks,
                   const std::string& where) {
  if (options.device) require_device(*options.device, where + "FullyShardOptions::device: ");
  require(!options.disk_policy || !options.device || options.device->is_cpu(), where,
          "FullyShardOptions::disk_policy keeps rows in files that are mapped into host memory, but "
          "FullyShardOptions::device is ",
          options.device.value_or(c10::kCPU), ". Leave one of them unset");
  if (!options.offload_policy) return;
  for (const auto& [name, tensor] : subtree_parameters(tree)) {
    if (runtime::registry().find(tensor)) continue;
    const auto device = choose_device(options, runtime::form_of_values(tensor).device, of_ranks);
    require(!device.is_cpu(), where,
            "FullyShardOptions::offload_policy keeps rows of parameters that are on an accelerator in host memory, but "
            "parameter '",
            name,
            "' is on the CPU, and so are the process group's tensors. On the CPU only the disk tier means something: "
            "set FullyShardOptions::disk_policy instead. Or name the accelerator in FullyShardOptions::device");
  }
}

void set_devices(const FullyShardOptions& options, c10::Device of_ranks, std::vector<PlannedGroup>& plan,
                 std::span<const c10::Device> found) {
  size_t place = 0;
  for (auto& group : plan)
    for (auto& parameter : group.parameters) {
      const auto form = runtime::form_of_values(parameter.tensor);
      const auto device = found.empty() ? form.device : found[place++];
      parameter.form = memory::Form{form.dtype, choose_device(options, device, of_ranks)};
    }
}

MovingBuffers::MovingBuffers(const FullyShardOptions& options, const ModuleNode& tree, c10::Device of_ranks) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, buffer] : subtree_buffers(tree)) {
    if (runtime::registry().find(buffer)) continue;
    const auto device = choose_device(options, buffer.device(), of_ranks);
    if (device == buffer.device()) continue;
    buffers_.emplace_back(buffer, at::empty_like(buffer, buffer.options().device(device).requires_grad(false)));
  }
}

void MovingBuffers::finish() {
  const at::NoGradGuard no_grad;
  for (auto& [buffer, there] : buffers_)
    buffer.unsafeGetTensorImpl()->shallow_copy_from(there.copy_(buffer).getIntrusivePtr());
}

}  // namespace fsdp
