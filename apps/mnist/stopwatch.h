#pragma once
/// \file
/// Seconds of work on a device.

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <chrono>
#include <optional>

namespace mnist {

/// Started where it is made. On a GPU by events on the current stream, elsewhere by the clock.
class Stopwatch {
 public:
  explicit Stopwatch(c10::Device device);
  /// Seconds from the start until all that the device was given is done; waits for that.
  double seconds() const;

 private:
  c10::Device device_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::optional<c10::Event> start_;
};

}  // namespace mnist
