#include "api/allocate_rows.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "runtime/param_group.h"

namespace fsdp {

void allocate_rows(std::span<runtime::Parts* const> groups) {
  using OnDevice = std::vector<std::pair<runtime::Parts*, runtime::FlatParams*>>;
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, OnDevice> devices;
  const auto& placement = groups.front()->identity.placement;
  size_t largest = 0, largest_slice = 0;
  for (auto* group : groups)
    for (auto& flat : group->params.flats()) {
      const auto device = flat.whole().form.device;
      if (device.is_meta()) continue;
      devices[{device.type(), device.index()}].emplace_back(group, &flat);
      largest = std::max(largest, flat.whole().bytes());
      const int64_t slice = flat.layout().slice_numel(placement.shard().rank());
      largest_slice = std::max(largest_slice, flat.whole().form.bytes(slice));
    }
  for (const auto& [device, flats] : devices) {
    std::vector<SharedPart> parts;
    for (const auto& [group, flat] : flats) parts.push_back({group->identity.name, flat->whole().bytes()});
    auto& communicator = placement.shard().communicator();
    const c10::Device place{device.first, device.second};
    const auto buffers = communicator.share(parts, place);
    std::vector<std::shared_ptr<HostBuffer>> on_host;
    if (buffers.empty()) on_host = communicator.share_on_host(parts, place);
    for (size_t i = 0; i < flats.size(); ++i) {
      const auto& [group, flat] = flats[i];
      flat->allocate_shard(buffers.empty() ? nullptr : buffers[i], on_host.empty() ? nullptr : on_host[i]);
      if (auto* shared = flat->shared()) group->turns.reading().add(*shared);
    }
  }
  if (largest > 0) placement.shard().reductions().reserve(largest);
  if (largest_slice > 0)
    for (const auto& steps : placement.further_steps()) steps->reserve(largest_slice);
}

}  // namespace fsdp
