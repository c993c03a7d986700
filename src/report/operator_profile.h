#pragma once
/// \file
/// Records LibTorch's operators with LibTorch's own profiler.

#include <memory>
#include <string>

namespace fsdp::report {

/// While an object of this class lives, the profiler records the operators of the calling thread and of its backwards,
/// with sizes and allocations. A process may have only one such object at a time. Destroy it on the thread that made
/// it.
class OperatorProfile {
 public:
  /// Begins the recording. Throws UsageError if a profiler is already running. `where` begins the error message.
  explicit OperatorProfile(const std::string& where);
  ~OperatorProfile();
  OperatorProfile(const OperatorProfile&) = delete;
  OperatorProfile& operator=(const OperatorProfile&) = delete;

  /// Ends the recording and returns its events as trace JSON, separated by commas. The events have the process ID
  /// `process`, and their times are relative to `base_ns` (nanoseconds since 1970). Later calls return the same text.
  std::string end(int process, int64_t base_ns);

 private:
  bool runs_ = true;
  std::string events_;
};

}  // namespace fsdp::report
