#pragma once
/// \file
/// Ranks of one host that share memory.

#include <fsdp/communicator.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/core/ranks.h"
#include "comm/core/traffic_count.h"
#include "comm/shm/links.h"
#include "comm/shm/peers.h"

namespace fsdp {

/// Why this process cannot share memory with others, in one sentence; empty if it can.
std::string shared_memory_obstacle();

/// Connects the ranks, which are on one host. `contacts[r]`: the contact of rank r's listener, of which `listener` is
/// this rank's; `own_rank`: what it shares with the rank's other communicators over shared memory; `traffic`: where
/// what it copies counts. Collective. Throws what shm::Links throws, and Error when a rank has no room for what they
/// share.
std::shared_ptr<Communicator> make_shm_communicator(const shm::Listener& listener,
                                                    const std::vector<std::string>& contacts, const Ranks& ranks,
                                                    std::chrono::milliseconds timeout,
                                                    std::shared_ptr<shm::OwnRank> own_rank,
                                                    std::shared_ptr<TrafficCount> traffic);

}  // namespace fsdp
