#pragma once
/// \file
/// What a failed rank said last.

#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace fsdprun {

/// The last lines of a stream without stack frames, which crowd out the message that they belong to. What an exception
/// that ended the program said ("what():") is kept, however much follows it.
class LastLines {
 public:
  void add(std::string_view line);
  /// The exception's message first.
  std::vector<std::string> lines() const;

 private:
  bool is_in_message_ = false;
  std::deque<std::string> message_, others_;
};

}  // namespace fsdprun
