#include "support/checked_device/timeline.h"

namespace fsdp::test::checked {

// Never destroyed: memory is given back until the very end of the process.
std::mutex& device_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

Timeline& Timeline::get() {
  static auto* timeline = new Timeline;
  return *timeline;
}

VectorClock& Timeline::of_this_thread() {
  thread_local VectorClock clock;
  return clock;
}

size_t Timeline::index_of(const c10::Stream& stream) {
  const auto [place, is_new] = indices_.emplace(stream, clocks_.size());
  if (is_new) clocks_.emplace_back();
  return place->second;
}

Stamp Timeline::launch(const c10::Stream& stream) {
  const size_t index = index_of(stream);
  clocks_[index].join(of_this_thread());
  return clocks_[index].advance(index);
}

}  // namespace fsdp::test::checked
