#pragma once
/// \file
/// Pure: what a rank did, in the JSON that Chrome and Perfetto open.

#include <fsdp/trace.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace fsdp::report {

/// For each of `events`, which begin in ascending order, a track on which nothing else goes on meanwhile: 0, 1, ... as
/// few as there may be.
std::vector<size_t> tracks_of(std::span<const TraceEvent> events);

/// The process of a rank: its events, separated by commas. Times are written since `base_ns`; what goes on ends at
/// `now_ns`.
std::string trace_json(int rank, std::span<const TraceEvent> events, int64_t base_ns, int64_t now_ns);

}  // namespace fsdp::report
