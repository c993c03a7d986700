#pragma once
/// \file
/// Finds the facts of this host for fsdprun --doctor.

#include <string>

#include "host_report.h"

namespace fsdprun {

/// Returns versions, devices, network interfaces, and the limits of this process, which its ranks inherit. `host` and
/// `port` are the address at which the nodes meet. MTU and offloads are those of the interface that leads to this
/// address.
HostFacts find_host_facts(const std::string& host, uint16_t port);

}  // namespace fsdprun
