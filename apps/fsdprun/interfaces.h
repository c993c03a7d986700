#pragma once
/// \file
/// Lists the network interfaces of this host for fsdprun --doctor.

#include <string>

namespace fsdprun {

struct Interfaces {
  /// The interfaces that are up, with their addresses and MTUs; empty if there are none.
  std::string list;
  /// MTU and offloads of the interface with the address `own_address`, or "none".
  std::string mtu, offloads;
};

/// Returns the interfaces of this host. `own_address` is this host's address on the route to node 0.
Interfaces find_interfaces(const std::string& own_address);

}  // namespace fsdprun
