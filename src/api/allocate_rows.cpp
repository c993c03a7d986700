#include "api/rows.h"

#include <fsdp/error.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "comm/core/text.h"
#include "runtime/param_group.h"

namespace fsdp {
namespace {

// Makes the files of groups that are kept on disk. If one rank has too little room, all ranks throw. Collective if
// there is such a group.
void reserve_on_disk(std::span<runtime::ShardedParams* const> groups, const std::string& call) {
  const auto is_left_out = [](const auto* group) {  // groups on the meta device get their files later
    return group->disk_folder.empty() || !group->is_on_cpu();
  };
  if (std::ranges::all_of(groups, is_left_out)) return;
  const auto& ranks = groups.front()->placement.process_group();
  const auto reserve = [&]() -> uint8_t {
    for (auto* group : groups) {
      if (is_left_out(group)) continue;
      auto& flats = group->flats();
      try {
        for (size_t i = 0; i < flats.size(); ++i)
          flats[i].keep_on_disk(group->disk_folder,
                                std::ranges::any_of(group->slots_in(i), &runtime::ParamSlot::requires_grad));
      } catch (const Error& lacks) {
        throw Error(str_cat(ranks.where("offload to disk"), "group '", group->group_name,
                            "': ", lacks.what_without_backtrace()));
      }
    }
    return 0;
  };
  answers_of_ranks(ranks, "offload to DiskOffloadPolicy::folder", call + ", room on disk", reserve);
}

// Returns the plane's bytes, rounded up so that the next plane begins aligned, on accelerators too.
size_t room_for(const runtime::FlatParams& plane) { return (plane.whole().bytes() + 255) / 256 * 256; }

// Allocates the planes on `device` whose memory ranks may share: one buffer for each group if all ranks can share
// memory. Otherwise this rank's rows get memory of their own, and if the ranks of a host can share memory, each plane
// gets a shared whole buffer.
void allocate_on(c10::Device device, std::span<runtime::ShardedParams* const> groups) {
  const auto is_shared = [&](const runtime::FlatParams& plane) {
    return plane.whole().form.device == device && !plane.is_on_disk() && !plane.is_on_host();
  };
  auto& communicator = groups.front()->placement.shard().communicator();
  std::vector<SharedPart> of_groups, of_planes;
  for (auto* group : groups) {
    auto& of_group = of_groups.emplace_back(SharedPart{group->group_name, 0});
    for (const auto& plane : group->flats()) {
      if (!is_shared(plane)) continue;
      of_group.bytes += room_for(plane);
      of_planes.push_back({group->group_name, plane.whole().bytes()});
    }
  }
  const auto buffers = communicator.share(of_groups, device);
  const auto on_host =
      buffers.empty() ? communicator.share_on_host(of_planes, device) : std::vector<std::shared_ptr<HostBuffer>>();
  size_t number = 0;
  for (size_t i = 0; i < groups.size(); ++i) {
    size_t first_byte = 0;
    for (auto& plane : groups[i]->flats()) {
      if (!is_shared(plane)) continue;
      plane.allocate_shard(buffers.empty() ? nullptr : buffers[i], first_byte,
                           on_host.empty() ? nullptr : on_host[number++]);
      first_byte += room_for(plane);
    }
    // A single rank never waits for readers, so it registers no shared buffer.
    if (!buffers.empty() && communicator.world_size() > 1) groups[i]->shared_buffers.push_back(buffers[i].get());
  }
}

}  // namespace

void allocate_rows(std::span<runtime::ShardedParams* const> groups, const std::string& call) {
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, std::vector<runtime::ShardedParams*>> devices;
  reserve_on_disk(groups, call);
  for (auto* group : groups)
    for (auto& flat : group->flats()) {
      const auto device = flat.whole().form.device;
      if (device.is_meta()) continue;
      if (flat.is_on_disk() || flat.is_on_host())
        flat.allocate_shard(nullptr);
      else if (auto& members = devices[{device.type(), device.index()}]; members.empty() || members.back() != group)
        members.push_back(group);
    }
  for (const auto& [device, members] : devices) allocate_on({device.first, device.second}, members);
}

}  // namespace fsdp
