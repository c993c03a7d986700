#pragma once
/// \file
/// `fsdp-bench collectives` measures the time and bandwidth of every collective, compared with Gloo and a copy in
/// memory. It also verifies the results.

#include "arguments.h"

namespace bench {

/// Measures messages that grow from `min_bytes` by factors of 4 to at most `max_bytes`. In each repetition the backend,
/// Gloo and a copy run one after another, each after a barrier; large messages have fewer repetitions. Every element of
/// every result is compared, and a wrong one throws fsdp::Error. A rank has two buffers of the largest message's size,
/// besides the memory of communicators. Rank 0 prints the result. Collective; all ranks must be on one host.
void run_collectives(const CollectivesArguments& arguments);

}  // namespace bench
