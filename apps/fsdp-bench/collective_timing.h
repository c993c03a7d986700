#pragma once
/// \file
/// How long collectives take, several in turns.

#include <fsdp/communicator.h>

#include <cstdint>
#include <span>
#include <vector>

#include "collective_case.h"

namespace bench {

/// How often a message is timed: about a quarter of a gigabyte in all, at least 5 and at most 100 times.
int64_t repetitions(int64_t bytes);

struct Contender {
  const CollectiveCase& collective;
  fsdp::Communicator& communicator;
};

/// The median time of each contender, in microseconds. They take repetitions in turns; a repetition takes as long as on
/// its slowest rank. `first` and `second` are buffers of the message's size. Throws fsdp::Error when a result is wrong.
/// Collective over the default process group.
std::vector<double> time_in_turns(std::span<const Contender> contenders, const at::Tensor& first,
                                  const at::Tensor& second);

/// The same of a barrier over each communicator. Throws fsdp::Error when a rank left a barrier before the last one
/// came; all ranks are on one host, whose clock they share.
std::vector<double> time_barrier(std::span<fsdp::Communicator* const> communicators);

}  // namespace bench
