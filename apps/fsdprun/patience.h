#pragma once
/// \file
/// Measures how long another process may be silent.

#include <algorithm>
#include <chrono>

namespace fsdprun {

/// Adds up the times between calls of is_over. Each counts as at most one second, because this process may have been
/// stopped meanwhile.
class Patience {
 public:
  explicit Patience(std::chrono::milliseconds limit) : limit_(limit) {}

  /// True if more time than the limit has passed. The caller must call this often.
  bool is_over() {
    constexpr std::chrono::milliseconds kLongestStep{1000};
    const auto now = Clock::now();
    waited_ += std::min<Clock::duration>(now - last_look_, kLongestStep);
    last_look_ = now;
    return waited_ > limit_;
  }
  void begin_anew() {
    waited_ = {};
    last_look_ = Clock::now();
  }

 private:
  using Clock = std::chrono::steady_clock;

  std::chrono::milliseconds limit_;
  Clock::duration waited_{};
  Clock::time_point last_look_ = Clock::now();
};

}  // namespace fsdprun
