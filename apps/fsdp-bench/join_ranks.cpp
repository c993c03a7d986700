#include "join_ranks.h"

#include <ATen/Parallel.h>
#include <fsdp/error.h>
#include <fsdp/process_group.h>

#include <cstdlib>

namespace bench {

bool is_rank() { return std::getenv("RANK") != nullptr; }

void join_ranks(const std::string& backend, int world) {
  at::set_num_threads(1);
  fsdp::init_process_group({.backend = backend});
  if (fsdp::world_size() == world) return;
  throw fsdp::UsageError("fsdp-bench: --world is " + std::to_string(world) + ", but this is one of " +
                         std::to_string(fsdp::world_size()) +
                         " ranks that a launcher started. Give --world that number, or start fsdp-bench without one.");
}

}  // namespace bench
