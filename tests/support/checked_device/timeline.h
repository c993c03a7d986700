#pragma once
/// \file
/// The order that streams and events guarantee for operations, whatever the order in which they ran.

#include <c10/core/Stream.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "support/checked_device/hang.h"

namespace fsdp::test::checked {

/// Identifies the n-th operation of a stream. Epochs and streams are numbered from 0, operations from 1.
struct Stamp {
  uint64_t epoch = 0;
  size_t stream = 0;
  uint64_t time = 0;
};

/// The last operation of each stream that the clock's owner (a stream, an event or a host thread) knows to precede it.
/// All operations of earlier epochs are over, because they belong to tests that have ended; see Timeline::forget.
class VectorClock {
 public:
  VectorClock() = default;
  explicit VectorClock(uint64_t epoch) : epoch_(epoch) {}

  bool knows(Stamp stamp) const {
    if (stamp.epoch != epoch_) return stamp.epoch < epoch_;
    return stamp.stream < times_.size() && times_[stamp.stream] >= stamp.time;
  }
  /// Counts the stream's next operation, and returns its stamp.
  Stamp advance(size_t stream) {
    if (stream >= times_.size()) times_.resize(stream + 1);
    return {epoch_, stream, ++times_[stream]};
  }
  /// Adds everything that `other` knows.
  void join(const VectorClock& other) {
    if (other.epoch_ < epoch_) return;
    if (other.epoch_ > epoch_) *this = VectorClock(other.epoch_);
    if (times_.size() < other.times_.size()) times_.resize(other.times_.size());
    for (size_t i = 0; i < other.times_.size(); ++i) times_[i] = std::max(times_[i], other.times_[i]);
    for (const auto& hang : other.hangs_) add(hang);
  }
  /// From this call on, the owner's operations come after one that hangs.
  void add(const std::shared_ptr<Hang>& hang) {
    std::erase_if(hangs_, [](const auto& one) { return one->is_over(); });
    if (!hang->is_over() && std::ranges::find(hangs_, hang) == hangs_.end()) hangs_.push_back(hang);
  }
  /// Returns the hanging operations before the owner's next one. Some of them may be over by now.
  const std::vector<std::shared_ptr<Hang>>& hangs() const { return hangs_; }
  bool is_over() const {
    return std::ranges::all_of(hangs_, [](const auto& hang) { return hang->is_over(); });
  }

 private:
  uint64_t epoch_ = 0;
  std::vector<std::shared_ptr<Hang>> hangs_;
  std::vector<uint64_t> times_;  // number of the last known operation, indexed by stream
};

/// Guards everything that the device records: clocks, blocks and findings. The mutex is never destroyed, because memory
/// is freed until the very end of the process.
inline std::mutex& device_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

/// Operations of one stream run one after another. Operations of two streams are ordered only by an event that one
/// stream records and the other waits for, or by a host thread that waits for one stream and then launches on the
/// other. Thread safety: callers must hold device_mutex().
class Timeline {
 public:
  static Timeline& get() {
    static auto* timeline = new Timeline;
    return *timeline;
  }

  /// Notes that the calling thread launches an operation on the stream.
  Stamp launch(const c10::Stream& stream) {
    auto& clock = clock_of(stream);
    clock.join(of_this_thread());
    return clock.advance(index_of(stream));
  }
  /// Returns what the stream knows when its next operation begins.
  const VectorClock& of(const c10::Stream& stream) { return clock_of(stream); }
  /// Orders all later launches on the stream after everything that `clock` knows.
  void make_wait(const c10::Stream& stream, const VectorClock& clock) { clock_of(stream).join(clock); }
  /// Notes that the stream's last operation hangs.
  void add(const c10::Stream& stream, const std::shared_ptr<Hang>& hang) { clock_of(stream).add(hang); }
  /// Returns what the calling thread has waited for.
  static VectorClock& of_this_thread() {
    thread_local VectorClock clock;
    return clock;
  }
  /// Declares that all operations so far are over. Clocks have an entry for each stream used since the last call, so
  /// they stay short.
  void forget() {
    ++epoch_;
    indices_.clear();
    clocks_.clear();
  }

 private:
  size_t index_of(const c10::Stream& stream) {
    const auto [place, is_new] = indices_.emplace(stream, clocks_.size());
    if (is_new) clocks_.emplace_back(epoch_);
    return place->second;
  }
  VectorClock& clock_of(const c10::Stream& stream) { return clocks_[index_of(stream)]; }

  uint64_t epoch_ = 0;
  std::unordered_map<c10::Stream, size_t> indices_;
  std::deque<VectorClock> clocks_;
};

/// Blocks until no operation that `clock` knows hangs. The caller must not hold device_mutex().
inline void wait_for_hangs(const VectorClock& clock) {
  for (const auto& hang : clock.hangs()) hang->wait();
}

}  // namespace fsdp::test::checked
