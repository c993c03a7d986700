#include "api/rows.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
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

// What one rank lacks ends it on all of them. Collective if some group is kept in files.
void reserve_on_disk(std::span<runtime::ShardedParams* const> groups, const std::string& call) {
  const auto& placement = groups.front()->placement;
  std::string error;
  bool is_asked = false;
  for (auto* group : groups) {
    if (group->disk_folder.empty() || !group->is_on_cpu()) continue;  // on the meta device: later
    is_asked = true;
    auto& flats = group->flats();
    try {
      for (size_t i = 0; i < flats.size(); ++i)
        flats[i].keep_on_disk(group->disk_folder,
                              std::ranges::any_of(group->slots_in(i), &runtime::ParamSlot::requires_grad));
    } catch (const Error& lacks) {
      error = str_cat("group '", group->group_name, "': ", lacks.what_without_backtrace());
      break;
    }
  }
  if (!is_asked) return;
  const auto& ranks = placement.process_group();
  const auto own = at::full({1}, static_cast<int64_t>(!error.empty()), at::kLong);
  const auto all = at::empty({ranks.world_size()}, at::kLong);
  ranks.communicator().all_gather(all, own, {call + ", room on disk", {}})->wait();
  const auto where = ranks.where("offload to disk");
  if (!error.empty()) throw Error(where + error);
  for (int rank = 0; rank < ranks.world_size(); ++rank)
    if (all.const_data_ptr<int64_t>()[rank] != 0)
      throw Error(str_cat(where, "rank ", ranks.global_ranks()[static_cast<size_t>(rank)],
                          " found too little room in its DiskOffloadPolicy::folder; its own error says how much"));
}

// The planes of a group whose memory ranks may share, on one device.
struct PlanesOfGroup {
  runtime::ShardedParams* group;
  std::vector<runtime::FlatParams*> planes = {};
};

// Each plane begins aligned, on accelerators too.
size_t room_for(const runtime::FlatParams& plane) { return (plane.whole().bytes() + 255) / 256 * 256; }

// One buffer for each group, that all ranks see; otherwise one for each plane, that the ranks of a host see; otherwise
// memory of this rank's own.
void allocate_on(c10::Device device, std::span<const PlanesOfGroup> groups) {
  auto& communicator = groups.front().group->placement.shard().communicator();
  std::vector<SharedPart> of_groups, of_planes;
  for (const auto& of : groups) {
    auto& of_group = of_groups.emplace_back(SharedPart{of.group->group_name, 0});
    for (const auto* plane : of.planes) {
      of_group.bytes += room_for(*plane);
      of_planes.push_back({of_group.subject, plane->whole().bytes()});
    }
  }
  const auto buffers = communicator.share(of_groups, device);
  const auto on_host =
      buffers.empty() ? communicator.share_on_host(of_planes, device) : std::vector<std::shared_ptr<HostBuffer>>();
  size_t number = 0;
  for (size_t i = 0; i < groups.size(); ++i) {
    size_t first_byte = 0;
    for (auto* plane : groups[i].planes) {
      plane->allocate_shard(buffers.empty() ? nullptr : buffers[i], first_byte,
                            on_host.empty() ? nullptr : on_host[number++]);
      first_byte += room_for(*plane);
    }
    // A rank that is alone waits for no other one to read.
    if (!buffers.empty() && communicator.world_size() > 1) groups[i].group->shared_buffers.push_back(buffers[i].get());
  }
}

}  // namespace

void allocate_rows(std::span<runtime::ShardedParams* const> groups, const std::string& call) {
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, std::vector<PlanesOfGroup>> devices;
  reserve_on_disk(groups, call);
  for (auto* group : groups) {
    for (auto& flat : group->flats()) {
      const auto device = flat.whole().form.device;
      if (device.is_meta()) continue;
      if (flat.is_on_disk() || flat.host) {
        flat.allocate_shard(nullptr);
      } else {
        auto& on_device = devices[{device.type(), device.index()}];
        if (on_device.empty() || on_device.back().group != group) on_device.push_back({group});
        on_device.back().planes.push_back(&flat);
      }
    }
  }
  for (const auto& [device, on_device] : devices) allocate_on({device.first, device.second}, on_device);
}

}  // namespace fsdp
