#pragma once
/// \file
/// Trains the same network by DDP, by FSDP, and by FSDP with auto-wrap.

#include "arguments.h"
#include "data.h"

namespace mnist {

/// Trains three times from the same seed: with the model replicated on every rank, sharded as one group, and sharded
/// with --auto-wrap. Rank 0 prints each training, then a table that compares them. Collective.
void compare(const Arguments& arguments, const Parts& parts);

}  // namespace mnist
