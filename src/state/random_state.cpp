#include "state/random_state.h"

#include <ATen/Context.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

namespace fsdp::state {

std::string name_of_random(int rank, const at::Device& device) {
  return c10::str("random.", rank, ".", c10::DeviceTypeName(device.type(), /*lower_case=*/true));
}

std::vector<at::Device> devices_of(const ModelTensors& tensors) {
  std::vector<at::Device> devices{at::kCPU};
  for (const auto& tensor : tensors.all) {
    const auto device = tensor.tensor.device();
    const auto is_same = [&](const at::Device& known) { return known.type() == device.type(); };
    if (std::none_of(devices.begin(), devices.end(), is_same)) devices.push_back(device);
  }
  return devices;
}

at::Tensor random_state(const at::Device& device) {
  auto generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_random_state(const at::Device& device, const at::Tensor& state) {
  auto generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace fsdp::state
