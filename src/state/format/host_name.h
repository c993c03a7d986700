#pragma once
/// \file
/// The name of this host.

#include <string>

namespace fsdp::state {

/// FSDP_HOST, or the kernel's host name.
std::string host_name();

}  // namespace fsdp::state
