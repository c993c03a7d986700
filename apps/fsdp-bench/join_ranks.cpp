#include "join_ranks.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <fsdp/error.h>
#include <fsdp/process_group.h>

#include <cstdlib>

#include "comm/group/membership.h"

namespace bench {

bool is_rank() { return std::getenv("RANK") != nullptr; }

c10::Device join_ranks(const std::string& backend, int world) {
  at::set_num_threads(1);
  fsdp::init_process_group({.backend = backend});
  if (fsdp::world_size() == world)
    return fsdp::choose_backend(backend, fsdp::local_rank(), fsdp::cuda_support()).device.value_or(c10::kCPU);
  throw fsdp::UsageError(
      "fsdp-bench: --world is " + std::to_string(world) + ", but this is one of " + std::to_string(fsdp::world_size()) +
      " ranks that a launcher started. Set --world to that number, or start fsdp-bench without a launcher.");
}

double of_slowest_rank(double value) {
  const auto slowest = at::full({1}, value, at::kDouble);
  fsdp::default_process_group()->communicator().all_reduce(slowest, fsdp::ReduceOp::kMax, {"time", {}})->wait();
  return slowest.item<double>();
}

}  // namespace bench
