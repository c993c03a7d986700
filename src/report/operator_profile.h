#pragma once
/// \file
/// Recording of LibTorch's operators by its profiler.

#include <memory>
#include <string>

namespace fsdp::report {

/// Records the operators of the calling thread and its backwards, with sizes and allocations, while it lives. One at a
/// time in a process. Destroy it on the thread that made it.
class OperatorProfile {
 public:
  /// Throws UsageError, whose message begins with `where`, if a profiler is already running.
  explicit OperatorProfile(const std::string& where);
  ~OperatorProfile();
  OperatorProfile(const OperatorProfile&) = delete;
  OperatorProfile& operator=(const OperatorProfile&) = delete;

  /// Ends the recording. Returns its events as trace JSON, separated by commas, with `process` as process ID and times
  /// relative to `base_ns` (nanoseconds since 1970). Later calls return the same text.
  std::string end(int process, int64_t base_ns);

 private:
  bool runs_ = true;
  std::string events_;
};

}  // namespace fsdp::report
