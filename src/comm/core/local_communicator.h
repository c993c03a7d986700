#pragma once
/// \file
/// The communicator of a group of one rank.

#include <fsdp/communicator.h>

#include <memory>

#include "comm/core/ranks.h"

namespace fsdp {

/// Makes a communicator of one rank, whose collectives are done when the call returns; on a device, when the current
/// stream reaches them. Thread-safe.
std::shared_ptr<Communicator> make_local_communicator(Ranks ranks = {});

}  // namespace fsdp
