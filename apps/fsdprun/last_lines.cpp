#include "last_lines.h"

namespace fsdprun {
namespace {

constexpr size_t kMost = 10;

/// True if the line begins the message of an uncaught exception, as the C++ library prints it.
bool begins_message(std::string_view line) {
  const size_t first = line.find_first_not_of(' ');
  return first != std::string_view::npos && line.substr(first).starts_with("what():");
}

/// True if LibTorch printed the line as a stack frame after a message.
bool is_frame(std::string_view line) { return line.starts_with("frame #"); }
bool begins_frames(std::string_view line) { return line.starts_with("Exception raised from "); }

}  // namespace

void LastLines::add(std::string_view line) {
  if (begins_message(line)) {
    message_.clear();
    is_in_message_ = true;
  } else if (begins_frames(line) || message_.size() == kMost) {
    is_in_message_ = false;
  }
  if (is_frame(line)) return;
  auto& lines = is_in_message_ ? message_ : others_;
  lines.emplace_back(line);
  if (lines.size() > kMost) lines.pop_front();
}

std::vector<std::string> LastLines::lines() const {
  std::vector<std::string> result(message_.begin(), message_.end());
  result.insert(result.end(), others_.begin(), others_.end());
  return result;
}

}  // namespace fsdprun
