#pragma once
/// \file
/// Functions that find addresses of hosts and the port of the store at which ranks meet.

#include <cstdint>
#include <string>

#include "comm/posix/descriptor.h"

namespace fsdp {

/// Returns a text that is equal for two processes if they run on one kernel, reach each other over the loopback
/// interface and see the same process ids, that is, share a network namespace and a process namespace.
std::string host_domain();

/// Returns the address of this host on the route to host:port; empty if there is no route.
std::string address_towards(const std::string& host, uint16_t port);

struct StoreListener {
  enum class Result { kListens, kOccupied, kNotHere, kUnknownHost, kRefused };

  Result result;
  Descriptor socket = {};
  uint16_t port = 0;
  /// The system's error message if `result` is kUnknownHost or kRefused.
  std::string problem = {};
};

/// Binds `port` (0 for any free one) for a store that ranks reach as `host`, and listens. If `host` is an address, such
/// as 127.0.0.1 or 192.0.2.7, the socket listens at that address; if it is localhost, on the loopback device. For any
/// other name the socket listens at all addresses of this host, because other hosts may resolve the name to another
/// address. The result is kNotHere if `host` is another host's address, kOccupied if another program uses the port,
/// kUnknownHost if `host` cannot be resolved, and kRefused after any other error.
StoreListener listen_for_store(const std::string& host, uint16_t port);

/// Returns 0 if a program, whether a store or not, accepts connections there, otherwise an errno. Waits as long as the
/// system does, which can be minutes.
int try_to_connect(const std::string& host, uint16_t port);

}  // namespace fsdp
