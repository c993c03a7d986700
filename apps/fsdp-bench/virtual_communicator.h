#pragma once
/// \file
/// A communicator of a rank that runs without its peers.

#include <fsdp/communicator.h>

#include <cstdint>
#include <memory>

#include "comm/c10d/issued_windows.h"
#include "comm/core/ranks.h"

namespace bench {

/// What a rank issued. A backend that moves data in rings sends `bytes` for it.
struct Issued {
  int64_t gathers = 0, reductions = 0, others = 0, bytes = 0;
};

/// Checks what callers pass as every communicator does, counts it, and moves nothing: outputs keep what they have.
std::shared_ptr<fsdp::Communicator> make_virtual_communicator(fsdp::Ranks ranks, std::shared_ptr<Issued> issued);

/// Makes a communicator whose operations are compared in windows, as those of a device's backend are.
std::shared_ptr<fsdp::Communicator> make_virtual_device(fsdp::Ranks ranks, std::shared_ptr<Issued> issued,
                                                        std::shared_ptr<fsdp::IssuedWindows> windows);

/// Makes a communicator whose ranks share memory, as those of one host do.
std::shared_ptr<fsdp::Communicator> make_virtual_host(fsdp::Ranks ranks);

}  // namespace bench
