#pragma once
/// \file
/// Which addresses reach which ranks.

#include <cstdint>
#include <string>

namespace fsdp {

/// Equal for two processes that reach each other over the loopback interface: the same kernel and network namespace.
std::string loopback_domain();

/// The address of this machine on the route to host:port; empty if there is none.
std::string address_towards(const std::string& host, uint16_t port);

}  // namespace fsdp
