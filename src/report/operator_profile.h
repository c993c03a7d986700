#pragma once
/// \file
/// LibTorch's operators while an object lives, by its profiler.

#include <memory>
#include <string>

namespace fsdp::report {

/// Of the calling thread and the backwards that it calls, with sizes and allocations. One at a time in a process; it
/// goes on the thread that made it.
class OperatorProfile {
 public:
  /// Throws UsageError beginning with `where` if a profiler runs already.
  explicit OperatorProfile(const std::string& where);
  ~OperatorProfile();
  OperatorProfile(const OperatorProfile&) = delete;
  OperatorProfile& operator=(const OperatorProfile&) = delete;

  /// Ends it. Returns its events in the JSON of traces, separated by commas, as `process`, their times since `base_ns`
  /// (nanoseconds since 1970). A second call returns what the first one did.
  std::string end(int process, int64_t base_ns);

 private:
  bool runs_ = true;
  std::string events_;
};

}  // namespace fsdp::report
