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

/// How far each stream had got, as far as its owner (a stream, an event, a thread of the host) knows.
class VectorClock {
 public:
  bool knows(Stamp stamp) const { return stamp.stream < times_.size() && times_[stamp.stream] >= stamp.time; }
  /// The next operation of the stream.
  Stamp advance(size_t stream) {
    if (stream >= times_.size()) times_.resize(stream + 1);
    return {stream, ++times_[stream]};
  }
  /// From now on it knows what `other` knows.
  void join(const VectorClock& other) {
    if (other.times_.size() > times_.size()) times_.resize(other.times_.size());
    for (size_t i = 0; i < other.times_.size(); ++i) times_[i] = std::max(times_[i], other.times_[i]);
  }

 private:
  std::vector<uint64_t> times_;
};

}  // namespace fsdp::test::checked
