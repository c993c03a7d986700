#pragma once
/// \file
/// Messages of a rank that runs without its peers.

#include <fsdp/backend.h>

namespace bench {

/// Makes backends whose peers do what this rank does: what comes from a peer is what went to it, in the same order. In
/// the collectives of sharding each pair of ranks tells each other the same, so that this rank finds its operations
/// confirmed. Of long messages only the length is kept, and they arrive as zeros.
fsdp::BackendFactory mirror_backends();

}  // namespace bench
