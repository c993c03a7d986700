#pragma once
/// \file
/// The order of what streams are given, whatever order it runs in.

#include <c10/core/Stream.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace fsdp::test::checked {

/// The n-th operation of a stream; streams are numbered from 0, operations from 1.
struct Stamp {
  size_t stream = 0;
  uint64_t time = 0;
};

/// How far each stream had got, as far as its owner (a stream, an event, a thread of the host) knows. Of streams that
/// are numbered below `first` everything is over: they belong to tests that have ended, see Timeline::forget.
class VectorClock {
 public:
  VectorClock() = default;
  explicit VectorClock(size_t first) : first_(first) {}

  bool knows(Stamp stamp) const {
    if (stamp.stream < first_) return true;
    const size_t place = stamp.stream - first_;
    return place < times_.size() && times_[place] >= stamp.time;
  }
  /// The next operation of the stream, which is none of those that are over.
  Stamp advance(size_t stream) {
    const size_t place = stream - first_;
    if (place >= times_.size()) times_.resize(place + 1);
    return {stream, ++times_[place]};
  }
  /// From now on it knows what `other` knows.
  void join(const VectorClock& other) {
    forget_below(other.first_);
    const size_t skipped = first_ - other.first_, count = other.times_.size();
    if (count <= skipped) return;
    if (count - skipped > times_.size()) times_.resize(count - skipped);
    for (size_t i = skipped; i < count; ++i) times_[i - skipped] = std::max(times_[i - skipped], other.times_[i]);
  }

 private:
  void forget_below(size_t first) {
    if (first <= first_) return;
    const auto gone = static_cast<std::ptrdiff_t>(std::min(first - first_, times_.size()));
    times_.erase(times_.begin(), times_.begin() + gone);
    first_ = first;
  }

  size_t first_ = 0;
  std::vector<uint64_t> times_;
};

/// Guards all that the device knows: its clocks, its blocks and what was found. Never destroyed: memory is given back
/// until the very end of the process.
inline std::mutex& device_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

/// Operations of one stream come one after another. Those of two are ordered only by an event that one records and the
/// other waits for, or by a thread of the host that waits for the one and then gives the other something to do.
/// Thread safety: under device_mutex().
class Timeline {
 public:
  static Timeline& get() {
    static auto* timeline = new Timeline;
    return *timeline;
  }

  /// The calling thread gives the stream something to do.
  Stamp launch(const c10::Stream& stream) {
    auto& clock = clock_of(stream);
    clock.join(of_this_thread());
    return clock.advance(index_of(stream));
  }
  /// What the stream knows of when its next operation begins.
  const VectorClock& of(const c10::Stream& stream) { return clock_of(stream); }
  /// What the stream is given from now on comes after all that `clock` knows.
  void make_wait(const c10::Stream& stream, const VectorClock& clock) { clock_of(stream).join(clock); }
  /// What the calling thread has waited for.
  static VectorClock& of_this_thread() {
    thread_local VectorClock clock;
    return clock;
  }
  /// All that streams were given is over. Clocks have an entry for each stream since then, so they stay short.
  void forget() {
    first_ += clocks_.size();
    indices_.clear();
    clocks_.clear();
  }

 private:
  size_t index_of(const c10::Stream& stream) {
    const auto [place, is_new] = indices_.emplace(stream, first_ + clocks_.size());
    if (is_new) clocks_.emplace_back(first_);
    return place->second;
  }
  VectorClock& clock_of(const c10::Stream& stream) { return clocks_[index_of(stream) - first_]; }

  size_t first_ = 0;  // the number of the first stream since `forget`; numbers are not used again
  std::unordered_map<c10::Stream, size_t> indices_;
  std::deque<VectorClock> clocks_;
};

}  // namespace fsdp::test::checked
