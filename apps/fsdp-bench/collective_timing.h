#pragma once
/// \file
/// Compares the times of several collectives.

#include <fsdp/communicator.h>

#include <cstdint>
#include <span>
#include <vector>

#include "collective_case.h"

namespace bench {

/// Returns how often a message of `bytes` is timed: so often that all repetitions together have 256 MiB, but at least 5
/// and at most 100 times.
int64_t repetitions(int64_t bytes);

struct Contender {
  const CollectiveCase& collective;
  fsdp::Communicator& communicator;
};

/// Returns the median time of each contender in microseconds. In each repetition the contenders run one after another,
/// and the time of each is that of its slowest rank. `first` and `second` are buffers of the message's size. Throws
/// fsdp::Error if a result is wrong. Collective over the default process group.
std::vector<double> time_in_turns(std::span<const Contender> contenders, const at::Tensor& first,
                                  const at::Tensor& second);

/// Returns the median time of a barrier over each communicator in microseconds. Throws fsdp::Error if a rank left a
/// barrier before the last rank entered it. All ranks must be on one host, because the check uses the host's clock.
/// Collective over the default process group.
std::vector<double> time_barrier(std::span<fsdp::Communicator* const> communicators);

}  // namespace bench
