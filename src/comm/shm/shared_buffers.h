#pragma once
/// \file
/// Buffers that exist once for all ranks of a host.

#include <fsdp/communicator.h>

#include <memory>
#include <span>
#include <vector>

#include "comm/shm/peers.h"

namespace fsdp::shm {

/// Shares the flat buffers of parameter groups, in which each rank's rows are one slice. Makes one buffer for each
/// part, all in one segment. Collective.
std::vector<std::shared_ptr<SharedBuffer>> share_rows(const std::shared_ptr<Peers>& peers,
                                                      std::span<const SharedPart> parts);

/// Shares memory for data that is the same on all ranks. Makes one buffer for each part, all in one segment. Pages get
/// memory when they are written and lose it when the last rank releases its hold. Collective.
std::vector<std::shared_ptr<HostBuffer>> share_host_memory(Peers& peers, std::span<const SharedPart> parts);

}  // namespace fsdp::shm
