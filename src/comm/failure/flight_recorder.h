#pragma once
/// \file
/// The flight recorder, which writes the last operations of a rank to a file when something fails.

#include <memory>
#include <string>

#include "comm/core/ranks.h"
#include "comm/core/timeline.h"

namespace fsdp {

/// The environment variable that names the file. If it is not set, nothing is recorded.
inline constexpr const char* kFlightRecorderVariable = "FSDP_FLIGHT_RECORDER";

/// Makes the timeline of a rank. If FSDP_FLIGHT_RECORDER names FILE, the timeline keeps its newest entries.
std::shared_ptr<Timeline> open_timeline();

/// Writes the kept entries to FILE.rankN as JSON, after a failure of this rank: {"rank": 0, "world_size": 4,
/// "operations": [{"number": 1, "operation": "all_gather", "group": "blocks.0", "sequence": 5, "bytes": 4096, "stage":
/// "done", ...}, ...]}. Returns " This rank's last operations are in 'FILE.rankN'." or why the file cannot be written;
/// empty if nothing was kept.
std::string flight_record_note(const Ranks& ranks);

}  // namespace fsdp
