#include "frame/bytes_text.h"

#include <iomanip>

#include "comm/core/text.h"

namespace frame {

std::string bytes_text(int64_t bytes) {
  const double megabytes = static_cast<double>(bytes) / 1e6;
  fsdp::TextWriter text;
  text << std::fixed << std::setprecision(megabytes < 10 ? 2 : 1) << megabytes << " MB";
  return text.str();
}

}  // namespace frame
