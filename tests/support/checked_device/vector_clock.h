#pragma once
/// \file
/// Vector clocks: what is known to be done by the time that something begins.

#include <algorithm>
#include <cstddef>
#include <cstdint>
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

}  // namespace fsdp::test::checked
