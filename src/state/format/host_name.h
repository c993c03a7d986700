#pragma once
/// \file
/// The name of this host in checkpoints and error messages.

#include <string>

namespace fsdp::state {

/// Returns the value of the environment variable FSDP_HOST, or the kernel's host name if that is unset or empty.
std::string host_name();

}  // namespace fsdp::state
