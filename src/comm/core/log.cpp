#include "comm/core/log.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <iomanip>

#include "comm/core/text.h"

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
  TextWriter line;
  line << std::put_time(&parts, "%T.") << std::setfill('0') << std::setw(3) << milliseconds << ' ' << where << text
       << '\n';
  std::fputs(line.str().c_str(), stderr);
}

}  // namespace fsdp
