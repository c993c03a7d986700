#include "api/allocate_rows.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fsdp/error.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "comm/core/text.h"
#include "runtime/param_group.h"

namespace fsdp {

namespace {

bool trains(runtime::ShardedParams& params, size_t flat) {
  for (size_t i = 0; i < params.count(); ++i)
    if (params.place(i).flat == flat && params.slots()[i].requires_grad()) return true;
  return false;
}

// What one rank lacks ends it on all of them. Collective if some group is kept in files.
void reserve_on_disk(std::span<runtime::Parts* const> groups, const std::string& call) {
  const auto& placement = groups.front()->identity.placement;
  std::string error;
  bool is_asked = false;
  for (auto* group : groups) {
    if (group->disk_folder.empty() || !group->params.is_on_cpu()) continue;  // on the meta device: later
    is_asked = group->identity.rank_state->keeps_files = true;
    auto& flats = group->params.flats();
    try {
      for (size_t i = 0; i < flats.size(); ++i)
        flats[i].shard().keep_on_disk(group->disk_folder, trains(group->params, i));
    } catch (const Error& lacks) {
      error = str_cat("group '", group->identity.name, "': ", lacks.what_without_backtrace());
      break;
    }
  }
  if (!is_asked) return;
  const auto& ranks = placement.process_group();
  std::vector<int64_t> offsets(static_cast<size_t>(ranks.world_size()) + 1);
  std::iota(offsets.begin(), offsets.end(), int64_t{0});
  const auto own = at::full({1}, static_cast<int64_t>(!error.empty()), at::kLong);
  const auto all = at::empty({ranks.world_size()}, at::kLong);
  ranks.communicator().all_gather(all, own, offsets, {call + ", room on disk", {}})->wait();
  const auto where = ranks.where("offload to disk");
  if (!error.empty()) throw Error(where + error);
  for (int rank = 0; rank < ranks.world_size(); ++rank)
    if (all.const_data_ptr<int64_t>()[rank] != 0)
      throw Error(str_cat(where, "rank ", ranks.global_ranks()[static_cast<size_t>(rank)],
                          " found too little room in its DiskOffloadPolicy::folder; its own error says how much"));
}

}  // namespace

void allocate_rows(std::span<runtime::Parts* const> groups, const std::string& call) {
  using OnDevice = std::vector<std::pair<runtime::Parts*, runtime::FlatParams*>>;
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, OnDevice> devices;
  const auto& placement = groups.front()->identity.placement;
  reserve_on_disk(groups, call);
  size_t largest = 0, largest_slice = 0;
  for (auto* group : groups)
    for (auto& flat : group->params.flats()) {
      const auto device = flat.whole().form.device;
      if (device.is_meta()) continue;
      const auto& shard = flat.shard();
      if (shard.is_on_disk() || shard.is_on_host())
        flat.allocate_shard(nullptr);
      else
        devices[{device.type(), device.index()}].emplace_back(group, &flat);
      const auto& reduced = shard.reduced_form();
      largest = std::max(largest, reduced.bytes(flat.whole().numel));
      largest_slice = std::max(largest_slice, reduced.bytes(flat.layout().slice_numel(placement.shard().rank())));
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
      // A rank that is alone waits for no other one to read.
      if (auto* shared = flat->shared(); shared && placement.shard().world_size() > 1)
        group->turns.reading().add(*shared);
    }
  }
  if (largest > 0) placement.shard().reductions().reserve(largest);
  if (largest_slice > 0)
    for (const auto& steps : placement.further_steps()) steps->reserve(largest_slice);
}

}  // namespace fsdp
