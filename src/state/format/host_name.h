#pragma once
/// \file
/// What this host is called.

#include <string>

namespace fsdp::state {

/// FSDP_HOST, or as the kernel has it.
std::string host_name();

}  // namespace fsdp::state
