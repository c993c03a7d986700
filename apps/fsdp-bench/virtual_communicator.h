#pragma once
/// \file
/// Makes communicators for a rank that runs without its peers.

#include <fsdp/communicator.h>

#include <cstdint>
#include <memory>

#include "comm/c10d/issued_windows.h"
#include "comm/core/ranks.h"

namespace bench {

/// Counts of the operations that a rank issued. `bytes` is what a backend that moves data in rings would send for them.
struct Issued {
  int64_t gathers = 0, reductions = 0, others = 0, bytes = 0;
};

/// Makes a communicator that checks the arguments of calls as every communicator does, and counts the calls. It moves
/// no data, so outputs keep their values.
std::shared_ptr<fsdp::Communicator> make_virtual_communicator(fsdp::Ranks ranks, std::shared_ptr<Issued> issued);

/// Makes a communicator whose operations are compared as those of a device's backend are, in windows (Note [Windows]).
std::shared_ptr<fsdp::Communicator> make_virtual_device(fsdp::Ranks ranks, std::shared_ptr<Issued> issued,
                                                        std::shared_ptr<fsdp::IssuedWindows> windows);

/// Makes a communicator whose ranks share memory, as on one host.
std::shared_ptr<fsdp::Communicator> make_virtual_host(fsdp::Ranks ranks);

}  // namespace bench
