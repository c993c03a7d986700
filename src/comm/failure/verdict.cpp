#include "comm/failure/verdict.h"

#include <fsdp/error.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <iomanip>
#include <set>
#include <vector>

#include "comm/core/text.h"

namespace fsdp {
namespace {

constexpr std::string_view kOrForThreads =
    ", or for threads that issue them in a different order on each rank (give the models of each thread a process "
    "group of their own)";

std::string names(const Ranks& ranks, const std::vector<int>& some) {
  std::string text = some.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < some.size(); ++i) text += str_cat(i == 0 ? "" : ", ", ranks.name_of(some[i]));
  return text;
}

// Returns the first rank that raised the alarm for this reason; -1 if there is none.
int first_with(Cause cause, std::span<const std::optional<Report>> reports) {
  const auto first = std::ranges::find_if(reports, [&](const auto& one) { return one && one->cause == cause; });
  return first == reports.end() ? -1 : static_cast<int>(first - reports.begin());
}

Verdict lost(const Ranks& ranks, int rank, const std::string& how, const Report* alarm,
             std::span<const std::optional<Report>> reports) {
  std::string text = how;
  if (alarm != nullptr && !alarm->failed_operation.empty()) {
    text = str_cat(alarm->failed_operation, " failed: ", how);
    if (!alarm->detail.empty()) text += str_cat(" (", alarm->detail, ")");
  }
  text += str_cat(".", last_operations(ranks, reports), kLookAtLost);
  return {Verdict::Kind::kPeerLost, ranks.name_of(rank), text};
}

}  // namespace

std::string last_operations(const Ranks& ranks, std::span<const std::optional<Report>> reports) {
  std::string text = " Last operations:";
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    text += str_cat(rank == 0 ? " " : "; ", "rank ", ranks.name_of(static_cast<int>(rank)), ": ",
                    reports[rank] ? reports[rank]->operations : "no answer");
  }
  return text + '.';
}

std::string in_seconds(std::chrono::milliseconds time) {
  TextWriter out;
  out << std::fixed << std::setprecision(1) << static_cast<double>(time.count()) / 1000 << " s";
  return out.str();
}

Verdict disagreement(const Ranks& ranks, const Fingerprint& mine, int peer, const Fingerprint& theirs,
                     const std::string& difference) {
  return {Verdict::Kind::kMismatch, ranks.name_of(peer),
          str_cat("ranks disagree about the next collective (", difference, "): rank ", ranks.name(), " runs ",
                  describe_fully(mine, ranks), "; rank ", ranks.name_of(peer), " runs ", describe_fully(theirs, ranks),
                  ".", kLookForDifference, "a branch that depends on the rank or on its data", kOrForThreads, ".")};
}

Verdict failed_alone(const Ranks& ranks, const std::string& operation, const std::string& error,
                     std::optional<int> lost) {
  return {lost ? Verdict::Kind::kPeerLost : Verdict::Kind::kMismatch, lost.value_or(ranks.name()),
          str_cat("rank ", ranks.name(), " failed in ", operation, ": ", error), lost.has_value()};
}

Verdict starts_over(const Ranks& ranks, const std::string& last_operations) {
  return {Verdict::Kind::kMismatch, ranks.name(),
          str_cat("rank ", ranks.name(), " starts over after an exception, but other ranks continued.", last_operations,
                  " Call reset_iter_state() on the model on every rank.")};
}

Verdict store_lost(int rank, bool store_in_rank_0, const std::string& detail, const std::string& last_operations) {
  if (store_in_rank_0 && rank != 0) {
    return {Verdict::Kind::kPeerLost, 0,
            str_cat("rank 0, which hosts the rendezvous store, is lost: the store is gone (", detail, ").",
                    last_operations, " Look at the output of rank 0, then start all ranks again.")};
  }
  return {Verdict::Kind::kError, -1,
          str_cat("the rendezvous store is gone (", detail,
                  "): the process that hosts the store, usually the launcher, has ended.", last_operations,
                  " Look at the launcher's output, then start all ranks again.")};
}

void raise(const Verdict& verdict, const Ranks& ranks, std::string_view operation) {
  const std::string message = ranks.where(operation) + verdict.text;
  blame(ranks.name(), verdict.rank);
  if (verdict.kind == Verdict::Kind::kPeerLost) throw PeerLost(verdict.rank, message);
  if (verdict.kind == Verdict::Kind::kMismatch) throw Mismatch(message);
  throw Error(message);
}

int find_blocking_rank(std::span<const int> waits_for, int rank) {
  int current = waits_for[rank];
  for (size_t steps = 0; steps < waits_for.size(); ++steps) {
    if (waits_for[current] < 0) return current;
    current = waits_for[current];
  }
  return waits_for[rank];
}

Verdict decide(const Ranks& ranks, std::span<const std::optional<Report>> reports, const std::string& silence) {
  // Gloo closes connections after a timeout, so a timeout is the cause of the broken connections that other ranks
  // report.
  const int timed_out = first_with(Cause::kTimeout, reports);
  const int alarmed = timed_out >= 0 ? timed_out : first_with(Cause::kTransport, reports);
  const Report* alarm = alarmed < 0 ? nullptr : &*reports[static_cast<size_t>(alarmed)];
  const auto left = [&](int rank) {
    return lost(ranks, rank, str_cat("rank ", ranks.name_of(rank), " has left the process group"), alarm, reports);
  };
  std::vector<int> silent;
  for (size_t rank = 0; rank < reports.size(); ++rank)
    if (!reports[rank]) silent.push_back(static_cast<int>(rank));
  if (!silent.empty()) {
    // Of several silent ranks, blame the one for which the rank that raised the alarm waited.
    const bool is_awaited = alarm != nullptr && std::ranges::count(silent, alarm->waiting_for) > 0;
    const int rank = is_awaited ? alarm->waiting_for : silent.front();
    auto verdict = lost(
        ranks, rank, str_cat(names(ranks, silent), silent.size() == 1 ? " is lost: it " : " are lost: they ", silence),
        alarm, reports);
    verdict.is_gone = true;
    return verdict;
  }
  if (alarm == nullptr)
    return {Verdict::Kind::kError, -1,
            str_cat("a collective failed on another rank.", last_operations(ranks, reports),
                    " Look at the output of the other ranks, then start all ranks again.")};
  const int peer = alarm->waiting_for;
  if (peer < 0) {
    // While ranks connect, Gloo does not tell which rank closed a connection. A faster rank may have left already.
    if (const int rank = first_with(Cause::kLeft, reports); rank >= 0) return left(rank);
    return {Verdict::Kind::kError, -1,
            str_cat(alarm->failed_operation, " failed: ", alarm->detail, ".", last_operations(ranks, reports))};
  }
  if (reports[peer]->cause == Cause::kLeft) return left(peer);
  if (alarm->cause == Cause::kTimeout) {
    std::vector<int> waits_for;
    for (const auto& report : reports) waits_for.push_back(report->cause == Cause::kLeft ? -1 : report->waiting_for);
    const int blocking = find_blocking_rank(waits_for, alarmed), name = ranks.name_of(blocking);
    if (reports[blocking]->cause == Cause::kLeft) return left(blocking);
    return {Verdict::Kind::kMismatch, name,
            str_cat(alarm->failed_operation, " timed out: rank ", name,
                    " is alive but did not join this operation; it reports: ", reports[blocking]->operations, '.',
                    last_operations(ranks, reports), kLookForDifference,
                    "a forward, a backward, a save or a loop that only some ranks run", kOrForThreads,
                    "; or raise the timeout if rank ", name, " needs longer.")};
  }
  return {Verdict::Kind::kError, ranks.name_of(peer),
          str_cat(alarm->failed_operation, " failed: the connection to rank ", ranks.name_of(peer),
                  " broke although that rank is alive (", alarm->detail, ").", last_operations(ranks, reports),
                  " Check the network, then start all ranks again.")};
}

// The board has one int for each rank: the rank that it blames plus 1, so zeros blame nobody.
Descriptor make_blame_board() { return Descriptor(memfd_create("fsdp-blame", 0)); }

void blame(int rank, int whom) {
  const char* board = std::getenv(kBlameVariable);
  if (board == nullptr || rank < 0) return;
  const int entry = whom + 1;
  static_cast<void>(!pwrite(std::atoi(board), &entry, sizeof entry, static_cast<off_t>(sizeof entry) * rank));
}

int blamed_by(const Descriptor& board, int rank) {
  int entry = 0;
  const auto place = static_cast<off_t>(sizeof entry) * rank;
  return pread(board.number(), &entry, sizeof entry, place) == sizeof entry ? entry - 1 : -1;
}

int find_first_failed(int rank, const std::function<int(int)>& blamed, const std::function<bool(int)>& failed) {
  std::set<int> seen{rank};
  for (int next = blamed(rank); next >= 0 && failed(next); next = blamed(rank)) {
    if (!seen.insert(next).second) break;
    rank = next;
  }
  return rank;
}

}  // namespace fsdp
