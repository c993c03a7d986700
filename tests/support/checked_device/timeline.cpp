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
  const auto [place, is_new] = indices_.emplace(stream, first_ + clocks_.size());
  if (is_new) clocks_.emplace_back(first_);
  return place->second;
}

VectorClock& Timeline::clock_of(const c10::Stream& stream) { return clocks_[index_of(stream) - first_]; }

Stamp Timeline::launch(const c10::Stream& stream) {
  auto& clock = clock_of(stream);
  clock.join(of_this_thread());
  return clock.advance(index_of(stream));
}

void Timeline::forget() {
  first_ += clocks_.size();
  indices_.clear();
  clocks_.clear();
}

}  // namespace fsdp::test::checked
