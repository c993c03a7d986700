#include "state/random_state.h"

#include <algorithm>

#include "comm/core/text.h"
#include "runtime/param_group.h"
#include "runtime/registry.h"

namespace fsdp::state {

namespace {

constexpr char kRandom[] = "random.";

// Returns the device that computes with a tensor, even if its rows are in host memory (CPUOffloadPolicy).
at::Device device_that_computes(const at::Tensor& tensor) {
  const auto part = runtime::registry().find(tensor);
  return part ? part->group->slots()[part->slot].form().device : tensor.device();
}

}  // namespace

std::string name_of(const at::Device& device) { return c10::DeviceTypeName(device.type(), /*lower_case=*/true); }

std::string name_of_random(int rank, const std::string& name) { return kRandom + std::to_string(rank) + "." + name; }

bool is_random(const std::string& name) { return name.starts_with(kRandom); }

std::vector<at::Device> devices_of(const ModelTensors& tensors) {
  std::vector<at::Device> devices{at::kCPU};
  for (const auto& tensor : tensors.all) {
    const auto device = device_that_computes(tensor.tensor);
    const auto is_same = [&](const at::Device& known) { return known.type() == device.type(); };
    if (std::none_of(devices.begin(), devices.end(), is_same)) devices.push_back(device);
  }
  return devices;
}

}  // namespace fsdp::state
