#pragma once
/// \file
/// The last operations of a rank in a file when something fails.

#include <memory>
#include <string>

#include "comm/core/ranks.h"
#include "comm/core/timeline.h"

namespace fsdp {

/// The environment variable that names the file; without it nothing is recorded.
inline constexpr const char* kFlightRecorderVariable = "FSDP_FLIGHT_RECORDER";

/// The timeline of a rank. Where FSDP_FLIGHT_RECORDER names FILE its newest entries are kept.
std::shared_ptr<Timeline> open_timeline();

/// After a failure of this rank: writes what was kept into FILE.rankN as JSON, {"rank": 0, "world_size": 4,
/// "operations": [{"number": 1, "operation": "all_gather", "group": "blocks.0", "sequence": 5, "bytes": 4096, "stage":
/// "done", ...}, ...]}. " This rank's last operations are in 'FILE.rankN'.", or empty where nothing was kept.
std::string flight_record_note(const Ranks& ranks);

}  // namespace fsdp
