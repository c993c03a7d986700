#pragma once
/// \file
/// The communicator of a program of one rank.

#include <fsdp/communicator.h>

#include <memory>

#include "comm/core/ranks.h"

namespace fsdp {

/// Collectives of one rank end at once. Thread safe.
std::shared_ptr<Communicator> make_local_communicator(Ranks ranks = {});

}  // namespace fsdp
