#pragma once
/// \file
/// A communicator of a rank that runs without its peers.

#include <fsdp/communicator.h>

#include <cstdint>
#include <memory>

#include "comm/core/ranks.h"

namespace bench {

/// What a rank issued. A backend that moves data in rings sends `bytes` for it.
struct Issued {
  int64_t gathers = 0, reductions = 0, others = 0, bytes = 0;
};

/// Checks what callers pass as every communicator does, counts it, and moves nothing: outputs keep what they have.
/// `shares_memory`: as the ranks of one host do.
std::shared_ptr<fsdp::Communicator> make_virtual_communicator(fsdp::Ranks ranks, std::shared_ptr<Issued> issued,
                                                              bool shares_memory = false);

}  // namespace bench
