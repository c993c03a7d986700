#pragma once
/// \file
/// Buffers that the ranks of a host have once.

#include <fsdp/communicator.h>

#include <memory>
#include <span>
#include <vector>

#include "comm/shm/peers.h"

namespace fsdp::shm {

/// Groups' flat buffers, each rank's rows its slice of them: one for each part, all of them in one segment. Collective.
std::vector<std::shared_ptr<SharedBuffer>> share_rows(const std::shared_ptr<Peers>& peers,
                                                      std::span<const SharedPart> parts);

/// What ranks hold alike: a buffer for each part, all of them in one segment, whose pages come as they are written and
/// go with the last rank that holds them. Collective.
std::vector<std::shared_ptr<HostBuffer>> share_host_memory(Peers& peers, std::span<const SharedPart> parts);

}  // namespace fsdp::shm
