#pragma once
/// \file
/// The communicator of ranks on one host, which share memory.

#include <fsdp/communicator.h>

#include <chrono>
#include <memory>
#include <vector>

#include "comm/core/ranks.h"
#include "comm/core/traffic_count.h"
#include "comm/shm/peers.h"

namespace fsdp {

/// Connects ranks that are processes or threads on one host. `contacts` has an element for each rank; the first one's
/// page must stay open until all ranks have joined. `own_rank` is shared by all of the rank's communicators over shared
/// memory, and `traffic` counts the bytes that the rank copies. Collective. Throws PeerLost with a rank that has ended
/// or does not come, Obstacle, and Error if a rank has no room for the shared memory.
std::shared_ptr<Communicator> make_shm_communicator(const std::vector<shm::Contact>& contacts, const Ranks& ranks,
                                                    std::chrono::milliseconds timeout,
                                                    std::shared_ptr<shm::OwnRank> own_rank,
                                                    std::shared_ptr<TrafficCount> traffic);

}  // namespace fsdp
