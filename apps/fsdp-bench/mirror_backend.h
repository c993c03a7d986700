#pragma once
/// \file
/// Messages of a rank that runs without its peers.

#include <fsdp/backend.h>

namespace bench {

/// Makes backends whose peers do what this rank does: what comes from a peer is what this rank sent last under the same
/// tag, to whomever. In the collectives of sharding all ranks say the same of an operation, so that this rank finds its
/// own confirmed. Of long messages only the length is kept, and they arrive as zeros.
fsdp::BackendFactory mirror_backends();

}  // namespace bench
