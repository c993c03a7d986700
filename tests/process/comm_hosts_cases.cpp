// The cases that the ranks of comm_hosts_test.py run on their hosts.

#include <fsdp/process_group.h>
#include <torch/torch.h>

#include <cstdlib>
#include <iostream>

#include "support/process_ranks.h"

namespace fsdp::test {
namespace {

// Returns the number in an environment variable that the test sets.
int64_t number_of(const char* name) { return std::atoll(std::getenv(name)); }

ProcessGroupOptions options() { return {.timeout = std::chrono::milliseconds(number_of("TIMEOUT_MS"))}; }

// Runs one all_gather and one reduce_scatter of about NUMEL floats. Every value is a sum of small integers.
PROCESS_CASE(exchange_between_hosts) {
  init_process_group(options());
  auto& all = default_process_group()->communicator();
  const int64_t world = world_size(), slice = number_of("NUMEL") / world;
  const auto expected = at::arange(slice * world).remainder(1000).to(at::kFloat);
  const auto own = expected.narrow(0, rank() * slice, slice);
  const auto output = at::zeros_like(expected);
  all.all_gather(output, own.clone(), {"w"})->wait();
  TORCH_CHECK(output.equal(expected), "the gathered values are wrong");
  const auto sum = at::zeros({slice});
  all.reduce_scatter(sum, expected * (1 << rank()), {"w"})->wait();
  TORCH_CHECK(sum.equal(own * ((1 << world) - 1)), "the sums are wrong");
  std::cout << "hosts " << default_process_group()->hosts() << std::endl;
}

// The ranks sum until an error ends them.
PROCESS_CASE(exchange_for_ever) {
  init_process_group(options());
  for (int i = 0;; ++i) {
    const auto tensor = at::full({number_of("NUMEL")}, 1.0f);
    default_process_group()->communicator().all_reduce(tensor, ReduceOp::kSum, {"step", {}})->wait();
    TORCH_CHECK(tensor.eq(world_size()).all().item<bool>(), "the sums are wrong");
    if (i == 3) std::cout << "running" << std::endl;
  }
}

}  // namespace
}  // namespace fsdp::test
