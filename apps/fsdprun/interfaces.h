#pragma once
/// \file
/// The network interfaces of this host, for fsdprun --doctor.

#include <string>

namespace fsdprun {

struct Interfaces {
  /// Those that are up, with addresses and MTU; empty: none.
  std::string list;
  /// Of the one that has the address asked for, or "none".
  std::string mtu, offloads;
};

/// `own_address`: the one of this host on the way to where the nodes meet.
Interfaces find_interfaces(const std::string& own_address);

}  // namespace fsdprun
