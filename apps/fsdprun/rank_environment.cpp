#include "rank_environment.h"

#include <cstdlib>

#include "launch/variables.h"

namespace fsdprun {

std::vector<std::string> rank_environment(const Flags& flags, const Nodes& nodes, int local_rank) {
  const int rank = nodes.first_rank() + local_rank;
  fsdp::Variables variables{
      {"GROUP_RANK", std::to_string(nodes.node())},
      {"GROUP_WORLD_SIZE", std::to_string(nodes.count())},
      {"ROLE_NAME", flags.role},
      {"ROLE_RANK", std::to_string(rank)},
      {"ROLE_WORLD_SIZE", std::to_string(nodes.world_size())},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(nodes.attempt())},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(flags.max_restarts)},
      {"TORCHELASTIC_RUN_ID", flags.run_id},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
  };
  if (std::getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING") == nullptr)
    variables.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  variables.merge(fsdp::variables_of({.rank = rank,
                                      .world_size = nodes.world_size(),
                                      .local_rank = local_rank,
                                      .local_world_size = nodes.local_ranks(),
                                      .host = nodes.host(),
                                      .port = nodes.port(),
                                      .token = nodes.token()}));
  return fsdp::environment_with(variables);
}

void limit_threads(int local_ranks, Console& console) {
  if (local_ranks < 2 || std::getenv("OMP_NUM_THREADS") != nullptr) return;
  setenv("OMP_NUM_THREADS", "1", /*overwrite=*/0);
  console.say("OMP_NUM_THREADS is not set: each rank gets 1 thread; set it to use more");
}

}  // namespace fsdprun
