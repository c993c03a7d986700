#pragma once
/// \file
/// Which groups are made whole for those that are read, and which are freed. Under the rank's lock.

#include <span>

#include "runtime/param_group.h"

namespace fsdp::runtime {

/// An operator is about to read `groups`, all of one rank.
void read_groups(std::span<ParamGroup* const> groups);

}  // namespace fsdp::runtime
