#include "activation/forward_state.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "runtime/random_state.h"

namespace fsdp::activation {
std::vector<at::Device> devices_of(std::span<const at::Tensor> inputs) {
  std::vector<at::Device> devices{at::kCPU};
  const auto type = at::getAccelerator();
  if (!type) return devices;
  const auto& accelerator = at::globalContext().getAcceleratorHooksInterface(*type);
  if (!accelerator.isAvailable() || accelerator.deviceCount() == 0) return devices;
  const auto add = [&](at::Device device) {
    if (std::ranges::find(devices, device) == devices.end()) devices.push_back(device);
  };
  for (const auto& input : inputs)
    if (input.defined() && input.device().type() == *type) add(input.device());
  // A query of the random state would initialise the accelerator, so a device that is not in use yet is left out.
  const auto current = c10::impl::VirtualGuardImpl(*type).getDevice();
  if (accelerator.hasPrimaryContext(current.index())) add(current);
  return devices;
}

RandomStates::RandomStates(std::span<const at::Device> devices) {
  for (const auto& device : devices) states_.emplace_back(device, runtime::random_state(device));
}

RandomStates RandomStates::now() const {
  RandomStates current;
  for (const auto& [device, state] : states_) current.states_.emplace_back(device, runtime::random_state(device));
  return current;
}

void RandomStates::restore() const {
  for (const auto& [device, state] : states_) runtime::set_random_state(device, state);
}

AutocastState::AutocastState() : is_cached_(at::autocast::is_autocast_cache_enabled()) {
  for (const auto type : at::autocast::_AUTOCAST_SUPPORTED_DEVICES)
    settings_.push_back({type, at::autocast::is_autocast_enabled(type), at::autocast::get_autocast_dtype(type)});
}

void AutocastState::restore() const {
  restore_uncached();
  at::autocast::set_autocast_cache_enabled(is_cached_);
}

void AutocastState::restore_uncached() const {
  for (const auto& [type, enabled, dtype] : settings_) {
    at::autocast::set_autocast_enabled(type, enabled);
    at::autocast::set_autocast_dtype(type, dtype);
  }
  at::autocast::set_autocast_cache_enabled(false);
}

}  // namespace fsdp::activation
