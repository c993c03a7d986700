// Tests of ranks that fork children. They do not run with AddressSanitizer, because it does not take its allocator's
// locks for a fork: a child may wait for ever for a lock that another thread of its parent held.

#include <fsdp/fully_shard.h>
#include <fsdp/process_group.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <optional>

#include "process/ranks.h"

namespace fsdp::test {
namespace {

int64_t reduce(const std::string& subject, int64_t own = 1, int64_t numel = 300'000) {
  const at::Tensor tensor = at::full({numel}, own);
  default_process_group()->communicator().all_reduce(tensor, ReduceOp::kSum, {subject})->wait();
  return tensor[0].item<int64_t>();
}

// The child uses nothing that the ranks share, but it holds all of it until it exits.
PROCESS_CASE(fork_a_child_that_exits) {
  const std::string backend = std::getenv("BACKEND");
  if (backend == "hierarchical") setenv("FSDP_HOST", std::getenv("RANK")[0] == '2' ? "one" : "other", /*overwrite=*/1);
  init_process_group({.backend = backend, .timeout = std::chrono::seconds(60)});
  static std::shared_ptr<ProcessGroup> all = default_process_group()->split({{0, 1, 2}}, "all");
  static torch::nn::Linear linear(4, 4);
  static std::optional<Group> model = fully_shard(*linear);
  const auto train = [] {
    ForwardScope scope(*model);
    linear(torch::ones({1, 4})).sum().backward();
  };
  train();
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    std::exit(0);
  }
  int status = 0;
  TORCH_CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0, "status ", status);
  reduce("blocks.2");
  all->communicator().barrier({"together"})->wait();
  train();
  all.reset();
  model.reset();
}

TEST(AChildThatExits, DisturbsNobodyOverAnyBackend) {
  for (const char* backend : {"shm", "gloo", "hierarchical"}) {
    SCOPED_TRACE(backend);
    auto ranks = start_ranks("fork_a_child_that_exits", 3, {{"BACKEND", backend}});
    expect_ends(ranks, 3, 0);
  }
}

// The children meet as ranks of their own group and exit. Then rank 1 ends without leaving its group.
PROCESS_CASE(fork_children_with_a_group) {
  const ProcessGroupOptions options{.backend = "gloo", .timeout = std::chrono::seconds(20)};
  init_process_group(options);
  reduce("blocks.2");
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    setenv("MASTER_PORT", std::getenv("PORT_OF_CHILDREN"), /*overwrite=*/1);
    init_process_group(options);
    std::exit(reduce("of the children", 1, 3) == 2 ? 0 : 1);  // too few for OpenMP, whose threads the child lacks
  }
  int status = 0;
  TORCH_CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0, "status ", status);
  reduce("blocks.3");
  if (rank() == 1) std::_Exit(0);
  try {
    reduce("blocks.4");
  } catch (const PeerLost& error) {
    std::cout << "PeerLost " << error.rank() << ": " << error.what_without_backtrace() << std::endl;
  }
}

TEST(ChildrenOfRanks, HaveAGroupOfTheirOwnAndLeaveThatOfTheirParentsAlone) {
  const HeldPort port;
  auto ranks = start_ranks("fork_children_with_a_group", 2, {{"PORT_OF_CHILDREN", std::to_string(port.number())}});
  expect_end(ranks, 0, 0, {"PeerLost 1:", "rank 1 is lost"});
  expect_end(ranks, 1, 0);
}

}  // namespace
}  // namespace fsdp::test
