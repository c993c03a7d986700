#pragma once
/// \file
/// Keeps the last lines that a failed rank printed.

#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace fsdprun {

/// The last lines of a stream. Stack frames are left out, because they would push out the message that they belong to.
/// The message of an exception that ended the program ("what():") is kept, even if many lines follow it.
class LastLines {
 public:
  void add(std::string_view line);
  /// Returns the lines, beginning with the exception's message.
  std::vector<std::string> lines() const;

 private:
  bool is_in_message_ = false;
  std::deque<std::string> message_, others_;
};

}  // namespace fsdprun
