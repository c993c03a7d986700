#pragma once
/// \file
/// What ranks tell each other through the store after a failure, the verdict that follows, and how a rank that fails
/// tells its launcher which rank it blames.

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
  kNone,       ///< The rank raised no alarm but answers another rank's alarm.
  kTimeout,    ///< The rank waited for `waiting_for` for the whole timeout.
  kTransport,  ///< The rank's connection to `waiting_for` failed.
  kLeft,       ///< The rank destroyed its process group.
};

/// One rank's answer to the roll call.
struct Report {
  Cause cause = Cause::kNone;
  int waiting_for = -1;  ///< the rank for which the reporting rank waits, or -1
  /// The last operations, e.g. "all_gather of 'w' (#5), waiting for rank 1 for 2.0 s".
  std::string operations;
  /// The operation that failed, and the transport's error message. Both are empty unless this rank raised the alarm.
  std::string failed_operation, detail;

  auto fields() { return std::tie(cause, waiting_for, operations, failed_operation, detail); }
};

/// The end of messages about a lost rank.
inline constexpr std::string_view kLookAtLost = " Look at the output of the lost rank, then start all ranks again.";

/// The advice if ranks issued different collectives. Messages complete the sentence with likely causes.
inline constexpr std::string_view kLookForDifference =
    " Every rank must issue the same collectives in the same order: look for ";

/// The conclusion that all ranks draw from a failure. The first one in the store holds for every rank.
struct Verdict {
  enum class Kind : int { kPeerLost, kMismatch, kError };
  Kind kind = Kind::kError;
  /// The global rank to blame, or -1. With kPeerLost it is never -1, but it can be a rank outside the group.
  int rank = -1;
  /// The error message, with global ranks.
  std::string text;
  /// True if `rank` is lost for all process groups of the job. False if it has only left the process group that draws
  /// the verdict.
  bool is_gone = false;

  auto fields() { return std::tie(kind, rank, text, is_gone); }
};

/// Returns the verdict when this rank runs `mine` and `peer` runs `theirs`, which differ in `difference`.
Verdict disagreement(const Ranks& ranks, const Fingerprint& mine, int peer, const Fingerprint& theirs,
                     const std::string& difference);
/// Returns the verdict when `operation` failed on this rank alone while others went on. `lost` is the global rank whose
/// loss caused the failure, if there is one.
Verdict failed_alone(const Ranks& ranks, const std::string& operation, const std::string& error,
                     std::optional<int> lost);
/// Returns the verdict for ranks that go on while this one starts over. `last_operations` is empty or begins with a
/// space.
Verdict starts_over(const Ranks& ranks, const std::string& last_operations);
/// Returns the verdict of the global rank `rank` when the rendezvous store does not answer. Global rank 0 hosts the
/// store if `store_in_rank_0`, otherwise another process does. `detail` is the transport's error message;
/// `last_operations` is empty or begins with a space.
Verdict store_lost(int rank, bool store_in_rank_0, const std::string& detail, const std::string& last_operations);
/// Throws the verdict's error on this rank, which runs `operation`, and tells the launcher which rank the verdict
/// blames.
[[noreturn]] void raise(const Verdict& verdict, const Ranks& ranks, std::string_view operation);

/// Returns the rank that keeps `rank` waiting. `waits_for` holds for each rank the rank for which it waits, or -1. From
/// `rank`, which must wait, the function goes on to the rank for which each waits, up to one that does not wait. In a
/// cycle it returns the rank for which `rank` waits.
int find_blocking_rank(std::span<const int> waits_for, int rank);

/// Draws the verdict from the ranks' reports. A rank without a report is lost; the message says "it " and then
/// `silence`, e.g. "did not answer within 5.0 s".
Verdict decide(const Ranks& ranks, std::span<const std::optional<Report>> reports, const std::string& silence);

/// Returns " Last operations: rank 0: ...; rank 1: ...".
std::string last_operations(const Ranks& ranks, std::span<const std::optional<Report>> reports);

/// Formats a time as "2.5 s".
std::string in_seconds(std::chrono::milliseconds time);

/// The environment variable with the number of a descriptor that ranks inherit from their launcher. The descriptor
/// refers to memory, the blame board, in which each rank writes which rank it blames.
inline constexpr const char* kBlameVariable = "FSDP_BLAME";

/// The longest time that the survivors of a lost rank need to agree which rank was lost and to report it: two roll
/// calls over a network and the farewell of the rank that hosts the store. A launcher waits this long before it ends
/// survivors.
inline constexpr std::chrono::seconds kLongestDiagnosis{15};

/// Makes the blame board for a launcher, without any blame. The descriptor is not open if the system refuses the
/// memory.
Descriptor make_blame_board();
/// Writes to the blame board that global rank `rank` fails because of `whom` or, if that is -1, that it goes on. Does
/// nothing if no launcher made a board.
void blame(int rank, int whom);
/// Returns the global rank that `rank` blames; -1 if none.
int blamed_by(const Descriptor& board, int rank);

/// Returns the rank whose failure caused the failure of `rank`, the first rank that was seen to fail. Follows the blame
/// from `rank` to a rank that has failed and blames no other failed rank.
int find_first_failed(int rank, const std::function<int(int rank)>& blamed,
                      const std::function<bool(int rank)>& failed);

}  // namespace fsdp
