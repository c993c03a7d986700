#pragma once
/// \file
/// Ranks of one host that share memory.

#include <fsdp/communicator.h>

#include <chrono>
#include <memory>
#include <vector>

#include "comm/core/ranks.h"
#include "comm/core/traffic_count.h"
#include "comm/shm/peers.h"

namespace fsdp {

/// Connects the ranks, which are processes or threads on one host. `contacts`: by rank; the first one's page stays open
/// until all have joined. `own_rank`: what the rank's communicators over shared memory have in common; `traffic`: where
/// what it copies counts. Collective. Throws PeerLost naming a rank that is gone or does not come, Obstacle, and Error
/// when a rank has no room for what they share.
std::shared_ptr<Communicator> make_shm_communicator(const std::vector<shm::Contact>& contacts, const Ranks& ranks,
                                                    std::chrono::milliseconds timeout,
                                                    std::shared_ptr<shm::OwnRank> own_rank,
                                                    std::shared_ptr<TrafficCount> traffic);

}  // namespace fsdp
