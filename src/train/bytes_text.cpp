#include "train/bytes_text.h"

#include <cstdio>

namespace fsdp::train {

std::string bytes_text(int64_t bytes) {
  char text[32];
  const double megabytes = static_cast<double>(bytes) / 1e6;
  std::snprintf(text, sizeof(text), megabytes < 10 ? "%.2f MB" : "%.1f MB", megabytes);
  return text;
}

}  // namespace fsdp::train
