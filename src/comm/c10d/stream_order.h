#pragma once
/// \file
/// The order between the caller's stream and the stream that a lane issues on.

#include <c10/core/Device.h>
#include <fsdp/communicator.h>

#include <functional>
#include <memory>

namespace fsdp {

/// Wraps what a lane runs and what the caller waits for, so that on an accelerator the collective comes after what the
/// caller's current stream had been given when it was submitted, and what the caller's stream is given after
/// `Work::wait()` comes after the collective. On the CPU both come back as they are.
class StreamOrder {
 public:
  explicit StreamOrder(c10::Device device);
  std::function<void()> in_lane(std::function<void()> move_data) const;
  std::shared_ptr<Work> for_caller(std::shared_ptr<Work> work) const;

 private:
  struct Events;
  c10::Device device_;
  std::shared_ptr<Events> events_;
};

}  // namespace fsdp
