#pragma once
/// \file
/// The same training by DDP, FSDP and FSDP with wrapping.

#include "arguments.h"
#include "data.h"

namespace mnist {

/// Trains with every rank's model replicated, sharded as one group, and sharded with --auto-wrap, one after the other
/// from the same seed. Rank 0 prints each, then a table of them side by side. Collective.
void compare(const Arguments& arguments, const Parts& parts);

}  // namespace mnist
