#pragma once
/// \file
/// The order of what streams are given, whatever order it runs in.

#include <c10/core/Stream.h>

#include <deque>
#include <mutex>
#include <unordered_map>

#include "support/checked_device/vector_clock.h"

namespace fsdp::test::checked {

/// Guards all that the device knows: its clocks, its blocks and what was found.
std::mutex& device_mutex();

/// Operations of one stream come one after another. Those of two are ordered only by an event that one records and the
/// other waits for, or by a thread of the host that waits for the one and then gives the other something to do.
/// Thread safety: under device_mutex().
class Timeline {
 public:
  static Timeline& get();

  /// The calling thread gives the stream something to do.
  Stamp launch(const c10::Stream& stream);
  /// What the stream knows of when its next operation begins.
  const VectorClock& of(const c10::Stream& stream) { return clock_of(stream); }
  /// What the stream is given from now on comes after all that `clock` knows.
  void make_wait(const c10::Stream& stream, const VectorClock& clock) { clock_of(stream).join(clock); }
  /// What the calling thread has waited for.
  static VectorClock& of_this_thread();
  /// All that streams were given is over. Clocks have an entry for each stream since then, so they stay short.
  void forget();

 private:
  size_t index_of(const c10::Stream& stream);
  VectorClock& clock_of(const c10::Stream& stream);

  size_t first_ = 0;  // the number of the first stream since `forget`; numbers are not used again
  std::unordered_map<c10::Stream, size_t> indices_;
  std::deque<VectorClock> clocks_;
};

}  // namespace fsdp::test::checked
