#pragma once
/// \file
/// How this program becomes the ranks of a job.

#include <c10/core/Device.h>
#include <fsdp/spawn.h>

#include <string>

namespace bench {

/// Whether a launcher has started this process as a rank.
bool is_rank();

/// Runs `run(arguments)` in this process if a launcher has started it as a rank, else in `arguments.world` forks, which
/// share the memory that LibTorch has filled by now. Throws fsdp::Error if a rank fails.
template <class Arguments>
void run_as_ranks(const Arguments& arguments, void (*run)(const Arguments&)) {
  if (is_rank()) {
    run(arguments);
  } else {
    fsdp::spawn([&](int) { run(arguments); }, arguments.world);
  }
}

/// Makes this process, which computes with one thread from now on, a rank of the default process group, and returns the
/// device that the backend gives it. Collective. Throws fsdp::UsageError when a launcher started another number of
/// ranks than `world`.
c10::Device join_ranks(const std::string& backend, int world);

/// The largest of the ranks' values. Collective.
double of_slowest_rank(double value);

}  // namespace bench
