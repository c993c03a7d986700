#include "activation/forward_state.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>

#include "runtime/random_state.h"

namespace fsdp::activation {
namespace {

// Asking about an accelerator that nobody has used yet must not initialise it.
std::optional<at::Device> current_accelerator() {
  const auto type = at::getAccelerator();
  if (!type) return std::nullopt;
  const auto& accelerator = at::globalContext().getAcceleratorHooksInterface(*type);
  if (!accelerator.isAvailable() || accelerator.deviceCount() == 0) return std::nullopt;
  const auto device = c10::impl::VirtualGuardImpl(*type).getDevice();
  if (!accelerator.hasPrimaryContext(device.index())) return std::nullopt;
  return device;
}

}  // namespace

RandomStates::RandomStates() {
  states_.emplace_back(at::kCPU, runtime::random_state(at::kCPU));
  if (const auto device = current_accelerator()) states_.emplace_back(*device, runtime::random_state(*device));
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
