#pragma once
/// \file
/// What the library does, line by line on standard error, for whom FSDP_LOG asks.

#include <cstdint>
#include <string_view>

namespace fsdp {

/// FSDP_LOG=info: joins, groups of ranks, groups of parameters. FSDP_LOG=debug: each collective too.
enum class LogLevel : uint8_t { kInfo, kDebug };

/// Whether a line of this level is asked for. Any thread.
bool logs(LogLevel level);

/// Writes "HH:MM:SS.mmm [fsdp rank 1/4] operation: text" as one line if the level is asked for; `where` is the middle,
/// as Ranks::where gives it. Any thread.
void log(LogLevel level, std::string_view where, std::string_view text);

}  // namespace fsdp
