#pragma once
/// \file
/// Which addresses reach which ranks, and the port of the store at which they meet.

#include <cstdint>
#include <string>

#include "comm/posix/descriptor.h"

namespace fsdp {

/// Equal for two processes of one kernel that reach each other over the loopback interface and know each other under
/// the same numbers: their namespaces of networks and of processes are the same.
std::string host_domain();

/// The address of this machine on the route to host:port; empty if there is none.
std::string address_towards(const std::string& host, uint16_t port);

struct StoreListener {
  enum class Result { kListens, kOccupied, kNotHere, kUnknownHost, kRefused };

  Result result;
  Descriptor socket = {};
  uint16_t port = 0;
  /// With kUnknownHost and kRefused: what the system says.
  std::string problem = {};
};

/// Binds `port` (0: any free one) for a store that is reached as `host`, and listens. An address, such as 127.0.0.1 or
/// 192.0.2.7, is listened at itself, localhost on the loopback device; for any other name all addresses of this host
/// are, because other hosts may know it under another one. kNotHere: `host` is another host's address; kOccupied:
/// another program uses the port; kUnknownHost: `host` is no host's name.
StoreListener listen_for_store(const std::string& host, uint16_t port);

/// 0 if somebody, a store or not, accepts connections there, else an errno. Waits as long as the system does, which may
/// be minutes.
int try_to_connect(const std::string& host, uint16_t port);

}  // namespace fsdp
