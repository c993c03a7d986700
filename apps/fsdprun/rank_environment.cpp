#include "rank_environment.h"

#include <unistd.h>

#include <cstdlib>
#include <map>

#include "exit.h"

namespace fsdprun {

std::vector<std::string> rank_environment(const Flags& flags, const Nodes& nodes, int local_rank, int attempt) {
  const std::string rank = std::to_string(nodes.first_rank() + local_rank);
  const std::string world_size = std::to_string(nodes.world_size());
  std::map<std::string, std::string> ours{
      {"RANK", rank},
      {"LOCAL_RANK", std::to_string(local_rank)},
      {"WORLD_SIZE", world_size},
      {"LOCAL_WORLD_SIZE", std::to_string(nodes.local_ranks())},
      {"GROUP_RANK", std::to_string(nodes.node())},
      {"GROUP_WORLD_SIZE", std::to_string(nodes.count())},
      {"ROLE_NAME", flags.role},
      {"ROLE_RANK", rank},
      {"ROLE_WORLD_SIZE", world_size},
      {"MASTER_ADDR", nodes.host()},
      {"MASTER_PORT", std::to_string(nodes.port())},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(attempt)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(flags.max_restarts)},
      {"TORCHELASTIC_RUN_ID", flags.run_id},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
      {"FSDP_JOB_TOKEN", nodes.token()},
  };
  std::vector<std::string> result;
  bool has_nccl_errors = false;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text(*entry);
    const std::string name = text.substr(0, text.find('='));
    has_nccl_errors |= name == "TORCH_NCCL_ASYNC_ERROR_HANDLING";
    if (!ours.contains(name)) result.push_back(text);
  }
  for (const auto& [name, value] : ours) result.push_back(name + "=" + value);
  if (!has_nccl_errors) result.push_back("TORCH_NCCL_ASYNC_ERROR_HANDLING=1");
  return result;
}

void limit_threads(int local_ranks, Console& console) {
  if (local_ranks < 2 || std::getenv("OMP_NUM_THREADS") != nullptr) return;
  setenv("OMP_NUM_THREADS", "1", /*overwrite=*/0);
  console.say("OMP_NUM_THREADS is not set: each rank gets 1 thread; set it to use more");
}

}  // namespace fsdprun
