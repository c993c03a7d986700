#pragma once
/// \file
/// What fsdprun --doctor finds on the host that it runs on.

#include <string>

#include "host_report.h"

namespace fsdprun {

/// Versions, devices, network interfaces and limits, as this process finds them and passes them on to its ranks.
/// `host` and `port`: where the nodes meet; the interface on the way there is the one whose MTU is compared.
HostFacts find_host_facts(const std::string& host, uint16_t port);

}  // namespace fsdprun
