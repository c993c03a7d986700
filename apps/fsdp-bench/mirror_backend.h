#pragma once
/// \file
/// Makes backends for a rank that runs without its peers.

#include <fsdp/backend.h>

namespace bench {

/// Returns a factory of backends whose peers do what this rank does: a receive delivers the last message with the same
/// tag that this rank sent to any peer. In the collectives of sharding all ranks send equal headers, so this rank
/// receives the header that it expects. Long messages arrive as zeros, because the backend does not store them.
fsdp::BackendFactory mirror_backends();

}  // namespace bench
