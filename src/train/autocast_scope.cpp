#include <ATen/autocast_mode.h>
#include <fsdp/trainer.h>

namespace fsdp::detail {

AutocastScope::AutocastScope(c10::DeviceType device, std::optional<at::ScalarType> dtype) {
  if (!dtype) return;
  device_ = device;
  previous_dtype_ = at::autocast::get_autocast_dtype(device);
  was_enabled_ = at::autocast::is_autocast_enabled(device);
  at::autocast::set_autocast_dtype(device, *dtype);
  at::autocast::set_autocast_enabled(device, true);
  at::autocast::increment_nesting();
}

AutocastScope::~AutocastScope() {
  if (!device_) return;
  // The cached casts of parameters are cleared, because the optimizer step that follows makes them stale.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(*device_, was_enabled_);
  at::autocast::set_autocast_dtype(*device_, previous_dtype_);
}

}  // namespace fsdp::detail
