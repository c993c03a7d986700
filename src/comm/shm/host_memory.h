#pragma once
/// \file
/// What ranks of one host hold alike, once: memory that comes when it is written and goes with the last that holds it.

#include <fsdp/communicator.h>

#include <memory>
#include <span>
#include <vector>

#include "comm/shm/peers.h"

namespace fsdp::shm {

/// A buffer for each part, all of them in one segment, whose pages come as they are used. Collective.
///
/// In front of each is a count of the holds on all ranks. Who gives the last one back gives the pages back too; nobody
/// writes meanwhile, since a gather begins when every rank has let go of what was gathered before.
std::vector<std::shared_ptr<HostBuffer>> share_host_memory(Peers& peers, std::span<const SharedPart> parts);

}  // namespace fsdp::shm
