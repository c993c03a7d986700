#pragma once
/// \file
/// Converts trace events to the JSON format of Chrome and Perfetto.

#include <fsdp/trace.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace fsdp::report {

/// Returns a track number, 0, 1, ..., for each event. Events of one track do not overlap, and there are as few tracks
/// as possible. `events` must be sorted by their beginning.
std::vector<size_t> tracks_of(std::span<const TraceEvent> events);

/// Returns a rank's events as JSON objects, separated by commas. In the trace, the rank is a process. Times are
/// relative to `base_ns`, and unfinished events end at `now_ns`.
std::string trace_json(int rank, std::span<const TraceEvent> events, int64_t base_ns, int64_t now_ns);

}  // namespace fsdp::report
