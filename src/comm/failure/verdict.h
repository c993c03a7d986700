#pragma once
/// \file
/// What ranks tell each other through the store when a collective failed, what follows from it, and what a rank that
/// fails tells its launcher: whose failure its own follows from.

#include "comm/core/fingerprint.h"
#include "comm/core/ranks.h"
#include "comm/core/store_message.h"
#include "comm/posix/descriptor.h"

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace fsdp {

/// Why a rank raised the alarm.
enum class Cause : int {
  kNone,       ///< It did not: it answers somebody else's alarm.
  kTimeout,    ///< It waited for `waiting_for` for the whole timeout.
  kTransport,  ///< Its connection to `waiting_for` failed.
  kLeft,       ///< It destroyed its process group.
};

/// One rank's answer to the roll call.
struct Report {
  Cause cause = Cause::kNone;
  int waiting_for = -1;  ///< the rank that it waits for; -1: none
  /// E.g. "all_gather of 'w' (#5), waiting for rank 1 for 2.0 s"
  std::string operations;
  /// The operation that failed and the transport's own words; empty unless this rank raised the alarm.
  std::string failed_operation, detail;

  auto fields() { return std::tie(cause, waiting_for, operations, failed_operation, detail); }
};

/// What to do about a lost rank.
inline constexpr std::string_view kLookAtLost = " Look at the output of the lost rank, then start all ranks again.";

/// Where to look when ranks differ: the sentence goes on with what only some ranks do.
inline constexpr std::string_view kLookForDifference =
    " Every rank must issue the same collectives in the same order: look for ";

/// What all ranks conclude. The first one in the store holds for every rank.
struct Verdict {
  enum class Kind : int { kPeerLost, kMismatch, kError };
  Kind kind = Kind::kError;
  /// The global rank to blame; -1: none. With kPeerLost there is one, perhaps none of the group.
  int rank = -1;
  /// Names ranks as Ranks does.
  std::string text;
  /// Whether `rank` is gone for all groups of the job, and not merely out of the group that found it.
  bool is_gone = false;

  auto fields() { return std::tie(kind, rank, text, is_gone); }
};

/// The verdict of this rank, which runs `mine`, when `peer` runs `theirs`; they differ in `difference`.
Verdict disagreement(const Ranks& ranks, const Fingerprint& mine, int peer, const Fingerprint& theirs,
                     const std::string& difference);
/// The verdict when `operation` failed on this rank alone, while others went on. `lost`: by the loss of this global
/// rank.
Verdict failed_alone(const Ranks& ranks, const std::string& operation, const std::string& error,
                     std::optional<int> lost);
/// The verdict for ranks that go on while this one starts over; `last_operations` is empty or begins with a space.
Verdict starts_over(const Ranks& ranks, const std::string& last_operations);
/// The verdict of `rank` when the rendezvous store does not answer; rank 0, which is the global one, or another process
/// hosts it. `detail`: the transport's words; `last_operations` is empty or begins with a space.
Verdict store_lost(int rank, bool store_in_rank_0, const std::string& detail, const std::string& last_operations);
/// Throws what the verdict calls for on this rank, in `operation`, and tells its launcher whom it blames.
[[noreturn]] void raise(const Verdict& verdict, const Ranks& ranks, std::string_view operation);

/// Follows who waits for whom, by rank (-1: it does not wait), from `rank`, which waits, to the one that does not; the
/// one that `rank` waits for if there is none.
int find_blocking_rank(std::span<const int> waits_for, int rank);

/// Decides from the reports; nullopt: that rank is lost, because it `silence`, e.g. "did not answer within 5.0 s".
Verdict decide(const Ranks& ranks, std::span<const std::optional<Report>> reports, const std::string& silence);

/// " Last operations: rank 0: ...; rank 1: ..."
std::string last_operations(const Ranks& ranks, std::span<const std::optional<Report>> reports);

/// "2.5 s"
std::string in_seconds(std::chrono::milliseconds time);

/// Has the number of a descriptor that ranks inherit: that of the memory in which they say whom they blame.
inline constexpr const char* kBlameVariable = "FSDP_BLAME";

/// What the survivors of a rank may take to agree who was lost, and to say so: two roll calls over a network and the
/// farewell of the rank that hosts the store. Whoever ends survivors waits for so long first.
inline constexpr std::chrono::seconds kLongestDiagnosis{15};

/// For a launcher: the memory, which begins without any blame. Not open where there is none.
Descriptor make_blame_board();
/// This global rank fails because of `whom`; -1: it goes on. Does nothing where no launcher asks.
void blame(int rank, int whom);
/// Whom the rank blames; -1: nobody.
int blamed_by(const Descriptor& board, int rank);

/// Follows the blame from the rank that was seen to fail first to one that has failed as well and blames no such other
/// one.
int find_first_failed(int rank, const std::function<int(int rank)>& blamed,
                      const std::function<bool(int rank)>& failed);

}  // namespace fsdp
