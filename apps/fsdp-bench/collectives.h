#pragma once
/// \file
/// `fsdp-bench collectives`: time and bandwidth of every collective, verified, beside Gloo and a copy in memory.

#include "arguments.h"

namespace bench {

/// Messages grow from `min_bytes` by factors of 4 to at most `max_bytes`. A barrier precedes each repetition; the
/// backend, Gloo and a copy take repetitions in turns, fewer of large messages. Every result of every repetition is
/// compared element by element: a wrong one throws fsdp::Error. A rank has two buffers of the largest message, beside
/// what communicators need. Rank 0 prints. Collective; all ranks are on one host.
void run_collectives(const CollectivesArguments& arguments);

}  // namespace bench
