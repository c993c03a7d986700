#pragma once
/// \file
/// The last operations of all ranks of a host in one file when something fails.

#include <memory>
#include <string>

#include "comm/core/ranks.h"
#include "comm/core/timeline.h"

namespace fsdp {

/// The environment variable that names the file; without it nothing is recorded.
inline constexpr const char* kFlightRecorderVariable = "FSDP_FLIGHT_RECORDER";

/// The timeline of the rank that this is among `ranks`. Where FSDP_FLIGHT_RECORDER names FILE it records its newest
/// entries into the file FILE.rankN: memory that the system keeps up to date, so that what a rank did last is there
/// however it ended. Throws UsageError if that cannot be made.
std::shared_ptr<Timeline> open_timeline(const Ranks& ranks);

/// Writes FILE as JSON from the files FILE.rankN beside it: {"ranks": [{"rank": 0, "host": ..., "operations":
/// [{"number": 1, "operation": "all_gather", "group": "blocks.0", "sequence": 5, "bytes": 4096, "stage": "done", ...},
/// ...]}, ...]}.
/// Another process, or another rank, may do the same at any time: what either knew when it began is in FILE when both
/// have ended. Returns how many ranks there were, 0 without touching FILE if none; throws Error where it cannot be
/// written.
int gather_flight_records(const std::string& file);

/// Removes the files FILE.rankN.
void remove_flight_records(const std::string& file);

/// After a failure of this rank: gathers them if it has a recorder. " The last operations of all ranks of this host are
/// in 'FILE'.", or empty.
std::string flight_record_note(const Ranks& ranks);

}  // namespace fsdp
