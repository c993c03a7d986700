#pragma once
/// \file
/// From a membership to a communicator.

#include <fsdp/communicator.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/group/membership.h"

#include <chrono>
#include <memory>

namespace fsdp {

/// Meets the other ranks in `store` and connects to them. Collective.
///
/// The n-th call of a rank meets the n-th calls of the others, so one store serves any number of groups one after
/// another. Throws PeerLost naming the ranks that do not come within `timeout`, Mismatch if ranks disagree about the
/// world size or backend. `store_in_rank_0`: see RollCallOptions.
std::shared_ptr<Communicator> join(const Membership& membership, const c10::intrusive_ptr<c10d::Store>& store,
                                   std::chrono::milliseconds timeout, bool store_in_rank_0);

}  // namespace fsdp
