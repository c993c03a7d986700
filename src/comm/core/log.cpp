#include "comm/core/log.h"

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>

namespace fsdp {

bool logs(LogLevel level) {
  const char* asked = std::getenv("FSDP_LOG");
  if (asked == nullptr) return false;
  const std::string_view value(asked);
  return value == "debug" || (value == "info" && level == LogLevel::kInfo);
}

void log(LogLevel level, std::string_view where, std::string_view text) {
  if (!logs(level)) return;
  const auto now = std::chrono::system_clock::now();
  const auto milliseconds = std::chrono::floor<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm parts{};
  localtime_r(&seconds, &parts);
  std::array<char, 32> time{};
  std::snprintf(time.data(), time.size(), "%02d:%02d:%02d.%03d ", parts.tm_hour, parts.tm_min, parts.tm_sec,
                static_cast<int>(milliseconds));
  std::string line(time.data());
  line.append(where).append(text).append("\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace fsdp
