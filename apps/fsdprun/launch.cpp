#include "launch.h"

#include <chrono>
#include <cstdlib>
#include <optional>
#include <utility>

#include "attempt.h"
#include "comm/posix/file.h"
#include "descendants.h"
#include "doctor.h"
#include "exit.h"
#include "nproc.h"
#include "own_children.h"
#include "program.h"
#include "rank_environment.h"

namespace fsdprun {
namespace {

std::string name_of(const Rank& rank, const Nodes& nodes) {
  std::string name = "rank " + std::to_string(rank.number);
  if (nodes.count() == 1) return name;
  return name + " (local rank " + std::to_string(rank.local_number) + " of node " + std::to_string(nodes.node()) + ")";
}

void report_first_failure(const Rank& rank, const Nodes& nodes, Console& console) {
  console.say(name_of(rank, nodes) + " (pid " + std::to_string(rank.pid) + ") failed first: it " +
              rank.status->describe());
  const auto lines = rank.last_error_lines();
  if (!lines.empty()) console.say("the last lines of this rank on stderr:");
  for (const std::string& line : lines) console.say("  " + line);
}

/// Prints to stderr which rank failed first and how, and how the other failed ranks ended.
void report(const AttemptResult& result, const Attempt& attempt, const Nodes& nodes, Console& console) {
  if (result.ended_elsewhere)
    console.say("the ranks were ended because of a failure on " + result.ended_elsewhere->text);
  if (result.failed) {
    report_first_failure(attempt.ranks()[static_cast<size_t>(*result.failed)], nodes, console);
  }
  for (const Rank& rank : attempt.ranks()) {
    if (rank.local_number == result.failed || !rank.status->is_failure()) continue;
    console.say("then " + name_of(rank, nodes) + " " + rank.status->describe());
  }
}

int exit_status(const AttemptResult& result, const Attempt& attempt) {
  if (result.failed) {
    return attempt.ranks()[static_cast<size_t>(*result.failed)].status->shell_code();
  }
  return result.ended_elsewhere ? kFailure : 0;
}

/// Waits until all output is written. Returns earlier if a signal asks the launcher to end, or if `patience` is given
/// and nothing has been written for that long.
void flush(Console& console, SignalQueue& signals, std::optional<std::chrono::seconds> patience) {
  constexpr std::chrono::milliseconds kLook{50};
  auto last_progress = std::chrono::steady_clock::now();
  for (size_t written = console.written(); !console.is_idle();) {
    if (signals.wait_for_end(kLook)) return;
    const auto now = std::chrono::steady_clock::now();
    if (std::exchange(written, console.written()) != console.written()) last_progress = now;
    if (patience && now - last_progress > *patience) return;
  }
}

/// Returns the reason for the end of the attempt as this node sees it.
AttemptEnd end_of(const AttemptResult& result, const Attempt& attempt, const Nodes& nodes) {
  if (result.ended_elsewhere) return *result.ended_elsewhere;
  const Rank& rank = attempt.ranks()[static_cast<size_t>(*result.failed)];
  return {.is_failure = true,
          .text = "node " + std::to_string(nodes.node()) + ": rank " + std::to_string(rank.number) + " " +
                  rank.status->describe()};
}

/// Runs the ranks once. Returns the exit status of the job, or nullopt if the ranks must start again.
std::optional<int> run_attempt(const AttemptContext& context) {
  const auto& [flags, program, nodes, files, guard, signals, console] = context;
  Attempt attempt(context);
  AttemptResult result = attempt.run();
  if (result.is_success()) result.ended_elsewhere = nodes.wait_until_all_are_done(signals);
  if (result.is_success()) return 0;
  if (!result.ended_elsewhere || result.ended_elsewhere->is_failure) report(result, attempt, nodes, console);
  if (result.was_asked_to_end) return exit_status(result, attempt);
  const AttemptEnd end = nodes.agree_on_end(end_of(result, attempt, nodes), signals);
  if (!end.is_failure) {
    console.say(end.text + ": all nodes meet and start again");
  } else if (nodes.failures() == flags.max_restarts) {
    return exit_status(result, attempt);
  } else {
    console.say("starting all ranks again, restart " + std::to_string(nodes.failures() + 1) + " of " +
                std::to_string(flags.max_restarts));
  }
  return std::nullopt;
}

int run_attempts(const Flags& flags, const std::string& program, Nodes& nodes, const OrphanGuard& guard,
                 SignalQueue& signals, Console& console) {
  const LogFiles files(flags, console);
  limit_threads(nodes.local_ranks(), console);
  for (;;) {
    nodes.meet(signals);
    if (flags.nodes.is_open()) {
      console.say("attempt " + std::to_string(nodes.attempt()) + " runs on " + std::to_string(nodes.count()) +
                  " nodes (--nnodes " + std::to_string(flags.nodes.least) + ":" + std::to_string(flags.nodes.most) +
                  ", world size " + std::to_string(nodes.world_size()) + "); this is node " +
                  std::to_string(nodes.node()));
    }
    const bool are_alike = !flags.doctor || compare_hosts(nodes, signals);
    if (const auto status = run_attempt({flags, program, nodes, files, guard, signals, console})) {
      return *status == 0 && !are_alike ? kFailure : *status;
    }
  }
}

/// Runs the attempts, and tells the other nodes how they ended.
int run_node(const Flags& flags, const std::string& program, Nodes& nodes, const OrphanGuard& guard,
             SignalQueue& signals, Console& console) {
  try {
    const int status = run_attempts(flags, program, nodes, guard, signals, console);
    nodes.leave(status == 0 ? "" : "its exit status is " + std::to_string(status), signals);
    return status;
  } catch (const std::exception& error) {
    nodes.leave(error.what(), signals);
    throw;
  }
}

int run_job(const Flags& flags, const OrphanGuard& guard, SignalQueue& signals, Console& console) {
  try {
    const std::string program = find_program(flags.command.front());
    const int processes = hear_signals_during([text = flags.processes_per_node] { return count_processes(text); },
                                              signals, "the GPUs to be counted");
    Nodes nodes(flags, processes, console, signals);
    return run_node(flags, program, nodes, guard, signals, console);
  } catch (const Exit& exit) {
    console.say(exit.what());
    return exit.status();
  } catch (const std::exception& error) {
    console.say(error.what());
    return kFailure;
  }
}

int launch_here(const Flags& flags) {
  adopt_orphans();
  const OrphanGuard guard;  // It forks, so no thread may run yet.
  SignalQueue signals;
  Console console;
  const int status = run_job(flags, guard, signals, console);
  const auto flush_all = [&] {
    flush(console, signals, status == 0 ? std::nullopt : std::optional(flags.shutdown_timeout));
  };
  flush_all();
  if (console.error() == 0) return status == 0 && console.has_lost() ? kFailure : status;
  console.say("cannot write what the ranks print: " + fsdp::why_and_what_to_do(console.error()));
  flush_all();
  return kFailure;
}

}  // namespace

int launch(const Flags& flags) {
  return with_own_children_only([&flags] { return launch_here(flags); });
}

void say(const std::string& message) {
  SignalQueue signals;
  Console console;
  console.say(message);
  flush(console, signals, std::chrono::seconds(2));
}

}  // namespace fsdprun
