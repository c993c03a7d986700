#pragma once
/// \file
/// What crosses streams for one collective: its tensors, from the caller's stream to a lane's and back.

#include <c10/core/Device.h>
#include <fsdp/communicator.h>

#include <functional>
#include <memory>

#include "comm/c10d/lane.h"

namespace fsdp {

/// On an accelerator a collective comes after what the caller's current stream had been given when it was submitted, or
/// after the one that it follows (`Work::then`), and what a stream is given after `Work::wait()` on it comes after the
/// collective. On the CPU both are as they are.
///
/// Note [Tensors that cross streams]: an allocator hands memory out again on the stream that it was taken on as soon as
/// the host lets it go. So the tensors of a collective, which `move_data` holds, are kept until the caller's stream has
/// been made to wait for the collective: by `Work::wait()`, or, if the Work is dropped, once the lane is done with it.
class StreamHandoff {
 public:
  StreamHandoff(c10::Device device, Lane::MoveData move_data);
  Lane::MoveData in_lane() const;
  std::shared_ptr<Work> for_caller(std::shared_ptr<Work> work) const;

 private:
  struct State;
  Lane::MoveData on_cpu_;
  std::shared_ptr<State> state_;
};

}  // namespace fsdp
