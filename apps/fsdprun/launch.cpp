#include "launch.h"

#include "attempt.h"
#include "descendants.h"
#include "exit.h"
#include "nproc.h"
#include "program.h"
#include "rank_environment.h"

namespace fsdprun {
namespace {

std::string name_of(const Rank& rank, const Nodes& nodes) {
  std::string name = "rank " + std::to_string(rank.number);
  if (nodes.count() == 1) return name;
  return name + " (local rank " + std::to_string(rank.local_number) + " of node " + std::to_string(nodes.node()) + ")";
}

void report_first_failure(const Rank& rank, const Nodes& nodes) {
  say(name_of(rank, nodes) + " (pid " + std::to_string(rank.pid) + ") failed first: it " + rank.status->describe());
  const auto lines = rank.last_error_lines();
  if (!lines.empty()) say("its last lines on stderr:");
  for (const std::string& line : lines) say("  " + line);
}

/// Says on stderr who failed first and how, and how the others ended.
void report(const AttemptResult& result, const Attempt& attempt, const Nodes& nodes) {
  if (result.failed_elsewhere) say("ended because of a failure on " + *result.failed_elsewhere);
  if (result.failed) {
    report_first_failure(attempt.ranks()[static_cast<size_t>(*result.failed)], nodes);
  }
  for (const Rank& rank : attempt.ranks()) {
    if (rank.local_number == result.failed || !rank.status->is_failure()) continue;
    say("then " + name_of(rank, nodes) + " " + rank.status->describe());
  }
}

int exit_status(const AttemptResult& result, const Attempt& attempt) {
  if (result.failed) {
    return attempt.ranks()[static_cast<size_t>(*result.failed)].status->shell_code();
  }
  return result.failed_elsewhere ? kFailure : 0;
}

}  // namespace

int launch(const Flags& flags) {
  const std::string program = find_program(flags.command.front());
  const int local_ranks = count_processes(flags.processes_per_node);
  adopt_orphans();
  const OrphanGuard guard;  // Before the store's threads.
  SignalQueue signals;
  Nodes nodes(flags, local_ranks, signals);
  const LogFiles files(flags);
  Console console;
  limit_threads(local_ranks);

  int status = 0;
  for (int number = 0;; ++number) {
    Attempt attempt({flags, program, nodes, files, guard, signals, console}, number);
    AttemptResult result = attempt.run();
    if (result.is_success()) {
      result.failed_elsewhere = nodes.wait_until_all_are_done(number, signals);
    }
    status = exit_status(result, attempt);
    if (result.is_success()) break;
    report(result, attempt, nodes);
    if (result.was_asked_to_end || number == flags.max_restarts) break;
    nodes.prepare_restart(number, signals);
    say("starting all ranks again, restart " + std::to_string(number + 1) + " of " +
        std::to_string(flags.max_restarts));
  }
  nodes.leave();
  return status;
}

}  // namespace fsdprun
