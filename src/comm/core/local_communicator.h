#pragma once
/// \file
/// The communicator of a program of one rank.

#include <fsdp/communicator.h>

#include <memory>

namespace fsdp {

/// Rank 0 of 1: collectives end at once. Thread safe.
std::shared_ptr<Communicator> make_local_communicator();

}  // namespace fsdp
