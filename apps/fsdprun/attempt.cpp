#include "attempt.h"

#include <poll.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>

#include "descendants.h"
#include "exit.h"
#include "launch/end_requests.h"
#include "rank_environment.h"
#include "rank_process.h"

namespace fsdprun {
namespace {

constexpr std::chrono::milliseconds kNodeLookInterval{500};
constexpr std::chrono::seconds kPatienceWithDescendants{5};

}  // namespace

Attempt::Attempt(AttemptContext context)
    : context_(context),
      ending_({context.flags.peer_grace, context.flags.shutdown_timeout}, [this](int signal) { send_to_all(signal); }) {
}

Attempt::~Attempt() {
  send_to_all(SIGKILL);
  for (const Rank& rank : ranks_) {
    if (rank.is_running()) context_.guard.remove(rank.pid);
  }
  for (const pid_t left : kill_descendants(context_.guard.pid(), kPatienceWithDescendants)) {
    context_.console.say("process " + std::to_string(left) + ", which a rank started, cannot be ended");
  }
}

AttemptResult Attempt::run() {
  ranks_.reserve(static_cast<size_t>(context_.nodes.local_ranks()));
  for (int local = 0; local < context_.nodes.local_ranks(); ++local) start(local);
  while (any_running()) {
    wait_for_news();
    for (Rank& rank : ranks_) {
      for (RankStream& stream : rank.streams) stream.read_available();
    }
    handle_signals();
    reap();
    if (context_.console.error() != 0 && !result_.was_asked_to_end) handle_request_to_end(SIGTERM);
    check_other_nodes();
    ending_.advance();
    if (ending_.phase() == fsdp::Ending::Phase::kGivenUp) give_up();
  }
  find_first_failed();
  return result_;
}

void Attempt::start(int local_rank) {
  const fsdp::Execution execution(context_.program, context_.flags.command,
                                  rank_environment(context_.flags, context_.nodes, local_rank, blame_board_));
  const bool piped = writes_through_pipes();
  const bool alone = context_.nodes.world_size() == 1;
  RankPipes pipes;
  Rank& rank = ranks_.emplace_back();
  rank.number = context_.nodes.first_rank() + local_rank;
  rank.local_number = local_rank;
  rank.status = fsdp::ExitStatus();  // If the start throws, the rank does not count as running.
  rank.pid = start_rank(execution, {.pipe_output = piped, .inherit_stdin = alone && isatty(STDIN_FILENO) == 0},
                        context_.signals, pipes);
  rank.status.reset();
  context_.guard.add(rank.pid);
  if (!piped) return;
  rank.streams.push_back(stream(Console::Stream::kOut, std::move(pipes.out), rank));
  rank.streams.push_back(stream(Console::Stream::kErr, std::move(pipes.err), rank));
}

bool Attempt::writes_through_pipes() const {
  const Flags& flags = context_.flags;
  return context_.nodes.world_size() > 1 || flags.prefix == Prefix::kAlways || flags.shown_local_ranks ||
         !flags.redirects.is_empty() || !flags.tee.is_empty();
}

RankStream Attempt::stream(Console::Stream which, fsdp::Descriptor pipe, const Rank& rank) {
  const Flags& flags = context_.flags;
  const int local = rank.local_number;
  const bool is_out = which == Console::Stream::kOut;
  const bool has_prefix =
      flags.prefix == Prefix::kAlways || (flags.prefix == Prefix::kSeveralRanks && context_.nodes.world_size() > 1);
  const bool redirected = is_out ? flags.redirects.has_stdout(local) : flags.redirects.has_stderr(local);
  const bool teed = is_out ? flags.tee.has_stdout(local) : flags.tee.has_stderr(local);
  RankStream::Options options{.stream = which, .prefix = "", .is_shown = true};
  if (has_prefix) options.prefix = "[rank " + std::to_string(rank.number) + "] ";
  options.is_shown = (!redirected || teed) && (!flags.shown_local_ranks || flags.shown_local_ranks->contains(local));
  options.log = is_out ? context_.files.open_stdout(context_.nodes.attempt(), local)
                       : context_.files.open_stderr(context_.nodes.attempt(), local);
  return RankStream(std::move(pipe), std::move(options), context_.console);
}

bool Attempt::any_running() const { return std::ranges::any_of(ranks_, &Rank::is_running); }

void Attempt::wait_for_news() {
  std::vector<pollfd> files{{context_.signals.descriptor(), POLLIN, 0}, {context_.console.descriptor(), POLLIN, 0}};
  for (const Rank& rank : ranks_) {
    for (const RankStream& stream : rank.streams) {
      if (stream.descriptor() >= 0) files.push_back({stream.descriptor(), POLLIN, 0});
    }
  }
  auto until = ending_.deadline();
  if (!context_.nodes.is_alone()) until = std::min(until, next_look_at_nodes_);
  int milliseconds = -1;
  if (until != Clock::time_point::max()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    milliseconds = static_cast<int>(std::max<int64_t>(left.count(), 0));
  }
  poll(files.data(), files.size(), milliseconds);
  context_.console.take_news();
}

void Attempt::handle_signals() {
  while (const auto signal = context_.signals.next()) {
    if (*signal == SIGCHLD) continue;  // reap() looks for ended ranks anyway.
    if (asks_for_end(*signal)) {
      handle_request_to_end(*signal);
    } else {
      send_to_all(*signal);
    }
  }
}

void Attempt::handle_request_to_end(int signal) {
  const auto now = Clock::now();
  if (result_.was_asked_to_end && fsdp::is_second_request(now - asked_at_)) ending_.kill();
  if (result_.was_asked_to_end) return;
  asked_at_ = now;
  result_.was_asked_to_end = true;
  context_.console.say(fsdp::signal_name(signal) + " was passed on to the ranks, which have " +
                       std::to_string(context_.flags.shutdown_timeout.count()) +
                       " s to save and stop; a second signal ends them");
  ending_.ask(signal);
}

void Attempt::reap() {
  std::vector<Rank*> ended;
  for (;;) {
    siginfo_t info{};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) break;
    const auto rank = std::ranges::find_if(
        ranks_, [&](const Rank& candidate) { return candidate.is_running() && candidate.pid == info.si_pid; });
    if (rank == ranks_.end()) {
      waitpid(info.si_pid, nullptr, 0);  // A rank started this process and ended before it.
      continue;
    }
    finish(*rank);
    ended.push_back(&*rank);
  }
  note_failures(ended);
}

void Attempt::finish(Rank& rank) {
  // The rank has ended, but no other process has its number before waitpid. The signal therefore reaches only processes
  // that the rank started.
  kill(-rank.pid, SIGKILL);
  context_.guard.remove(rank.pid);
  int status = 0;
  waitpid(rank.pid, &status, 0);
  rank.status = fsdp::ExitStatus::from_wait(status);
  rank.ended_by_itself = ending_.phase() <= fsdp::Ending::Phase::kPeersMayEnd;
  for (RankStream& stream : rank.streams) stream.finish();
}

void Attempt::note_failures(const std::vector<Rank*>& ended) {
  const auto worst = std::ranges::max_element(ended, {}, [](const Rank* rank) { return rank->status->failure(); });
  if (worst == ended.end() || !(*worst)->status->is_failure() || !result_.is_success()) return;
  const Rank& first = **worst;
  result_.failed = first.local_number;
  context_.nodes.tell_own_failure("rank " + std::to_string(first.number) + " " + first.status->describe());
  ending_.note_failure();
}

// A rank that fails because of another rank's failure can end before that rank.
void Attempt::find_first_failed() {
  if (!result_.failed) return;
  const int first_rank = context_.nodes.first_rank();
  const auto blamed = [&](int local) { return fsdp::blamed_by(blame_board_, first_rank + local) - first_rank; };
  const auto failed = [&](int local) {
    const bool is_here = local >= 0 && local < static_cast<int>(ranks_.size());
    return is_here && ranks_[local].ended_by_itself && ranks_[local].status->is_failure();
  };
  result_.failed = fsdp::find_first_failed(*result_.failed, blamed, failed);
}

void Attempt::check_other_nodes() {
  if (context_.nodes.is_alone() || Clock::now() < next_look_at_nodes_) return;
  next_look_at_nodes_ = Clock::now() + kNodeLookInterval;
  const auto end = context_.nodes.end_elsewhere();
  if (!end || ending_.phase() != fsdp::Ending::Phase::kRunning) return;
  result_.ended_elsewhere = end;
  if (end->is_failure) {
    ending_.note_failure();
  } else {
    ending_.ask(SIGTERM);  // The ranks need no time to find the reason.
  }
}

void Attempt::give_up() {
  for (Rank& rank : ranks_) {
    if (!rank.is_running()) continue;
    context_.guard.remove(rank.pid);
    rank.status = fsdp::ExitStatus::from_wait(SIGKILL);
    for (RankStream& stream : rank.streams) stream.finish();
  }
}

void Attempt::send_to_all(int signal) const {
  for (const Rank& rank : ranks_) rank.send(signal);
}

}  // namespace fsdprun
