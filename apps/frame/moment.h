#pragma once
/// \file
/// Moments in the work of a device, for timing it.

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <chrono>
#include <optional>

namespace frame {

/// The moment at which it is made: on a GPU when the current stream has done what it was given by then, elsewhere by
/// the clock. Belongs to one thread.
class Moment {
 public:
  explicit Moment(c10::Device device);
  /// From `earlier`, a moment of the same device and stream; waits until the device has come to this one.
  double seconds_since(const Moment& earlier) const;

 private:
  std::chrono::steady_clock::time_point time_ = std::chrono::steady_clock::now();
  std::optional<c10::Event> event_;
};

}  // namespace frame
