#pragma once
/// \file
/// Class Moment measures how long a device works.

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <chrono>
#include <optional>

namespace frame {

/// The time at which a Moment was constructed. On a GPU this is the time at which the current stream has done all work
/// that was queued by then; on the CPU it is the time of the clock. Only one thread may use a Moment.
class Moment {
 public:
  explicit Moment(c10::Device device);
  /// Returns the seconds since `earlier`, which must belong to the same device and stream. Waits until the device has
  /// reached this moment.
  double seconds_since(const Moment& earlier) const;

 private:
  std::chrono::steady_clock::time_point time_ = std::chrono::steady_clock::now();
  std::optional<c10::Event> event_;
};

}  // namespace frame
