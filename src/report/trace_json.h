#pragma once
/// \file
/// Conversion of trace events to the JSON format of Chrome and Perfetto.

#include <fsdp/trace.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace fsdp::report {

/// Assigns each event a track, 0, 1, ..., so that events of a track do not overlap, with as few tracks as possible.
/// `events` must be sorted by beginning.
std::vector<size_t> tracks_of(std::span<const TraceEvent> events);

/// A rank's events as one process of the trace, separated by commas. Times are relative to `base_ns`; unfinished events
/// end at `now_ns`.
std::string trace_json(int rank, std::span<const TraceEvent> events, int64_t base_ns, int64_t now_ns);

}  // namespace fsdp::report
