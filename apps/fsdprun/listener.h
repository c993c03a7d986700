#pragma once
/// \file
/// The port of the store.

#include <cstdint>
#include <string>

#include "comm/descriptor.h"

namespace fsdprun {

struct Listener {
  enum class Result { kListens, kOccupied, kNotHere };

  Result result;
  fsdp::Descriptor socket;
  uint16_t port = 0;
};

/// Binds `port` (0: any free one) for a store that is reached as `host`: on the loopback device only
/// if `host` is there, else on all of this host's addresses. kNotHere: `host` is another host's
/// address; kOccupied: another program uses the port. Throws Exit if `host` is no host's name.
Listener bind_store_port(const std::string& host, uint16_t port);

}  // namespace fsdprun
