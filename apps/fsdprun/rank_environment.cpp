#include "rank_environment.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "comm/failure/verdict.h"
#include "launch/variables.h"

namespace fsdprun {
namespace {

// Returns how many columns of the terminal remain after the prefix of a rank's line. Returns 0 if the rank's stdout is
// not shown on a terminal, or also goes to a file.
int columns_of_line(const Flags& flags, int local_rank) {
  constexpr int kPrefix = 16;
  const bool is_shown = !flags.shown_local_ranks || flags.shown_local_ranks->contains(local_rank);
  winsize size{};
  if (!is_shown || flags.redirects.has_stdout(local_rank) || flags.tee.has_stdout(local_rank) ||
      ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0)
    return 0;
  return std::max(0, size.ws_col - kPrefix);
}

}  // namespace

std::vector<std::string> rank_environment(const Flags& flags, const Nodes& nodes, int local_rank,
                                          const fsdp::Descriptor& blame_board) {
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
  variables.emplace(fsdp::kBlameVariable,
                    blame_board.is_open() ? std::optional(std::to_string(blame_board.number())) : std::nullopt);
  const int columns = columns_of_line(flags, local_rank);
  variables.emplace(fsdp::kTerminalColumnsVariable,
                    columns > 0 ? std::optional(std::to_string(columns)) : std::nullopt);
  variables.merge(fsdp::variables_of({.rank = rank,
                                      .world_size = nodes.world_size(),
                                      .local_rank = local_rank,
                                      .local_world_size = nodes.local_ranks(),
                                      .host = nodes.host(),
                                      .port = nodes.port(),
                                      .counts_signals = true}));
  return fsdp::environment_with(variables);
}

void limit_threads(int local_ranks, Console& console) {
  if (local_ranks < 2 || std::getenv("OMP_NUM_THREADS") != nullptr) return;
  setenv("OMP_NUM_THREADS", "1", /*overwrite=*/0);
  console.say("OMP_NUM_THREADS is not set: each rank gets 1 thread; set the variable to use more threads");
}

}  // namespace fsdprun
