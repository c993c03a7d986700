#pragma once
/// \file
/// Runs this program as the ranks of a job.

#include <c10/core/Device.h>
#include <fsdp/spawn.h>

#include <string>

namespace bench {

/// True if a launcher has started this process as a rank.
bool is_rank();

/// Calls `run(arguments)` in this process if a launcher has started it as a rank, else in `arguments.world` forks. The
/// forks share the memory that LibTorch has already filled. Throws fsdp::Error if a rank fails.
template <class Arguments>
void run_as_ranks(const Arguments& arguments, void (*run)(const Arguments&)) {
  if (is_rank()) {
    run(arguments);
  } else {
    fsdp::spawn([&](int) { run(arguments); }, arguments.world);
  }
}

/// Makes this process a rank of the default process group, and limits it to one thread. Returns the device that the
/// backend gives this rank. Collective. Throws fsdp::UsageError if a launcher has started a number of ranks other than
/// `world`.
c10::Device join_ranks(const std::string& backend, int world);

/// Returns the largest value of all ranks. Collective.
double of_slowest_rank(double value);

}  // namespace bench
