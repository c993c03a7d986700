#pragma once
/// \file
/// A record of what a rank does, which is written only while a trace records.

#include <atomic>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/core/mutex.h"

namespace fsdp {

/// One piece of work that a rank does or did.
struct TimelineEntry {
  bool is_communication = false;        ///< true for a collective, which runs asynchronously
  std::string name = {}, subject = {};  ///< `subject`: the parameter group or other subject of the work
  /// For a collective: its number in its queue, and the bytes of all ranks' data.
  uint64_t sequence = 0, bytes = 0;
  bool has_failed = false;
  /// The entry's number on this rank; entries are numbered from 1 in the order in which they begin.
  uint64_t number = 0;
  /// Nanoseconds since 1970. `ended` is 0 while the work goes on.
  int64_t begun = 0, ended = 0;
  /// The operating system's id of the thread in which the entry began.
  int32_t thread = 0;
};

/// The newest entries by their numbers, at most `room`. The timeline that records into them guards them with its lock.
struct TimelineEntries {
  const size_t room;
  std::map<uint64_t, TimelineEntry> entries = {};
};

/// The timeline of a rank; all its communicators and parameter groups write to it. Thread-safe.
class Timeline {
 public:
  /// Returns whether anyone records. While no one does, this check is the only cost of an entry.
  bool is_on() const { return is_on_.load(std::memory_order_relaxed); }
  void record_into(std::shared_ptr<TimelineEntries> entries);
  void forget(const std::shared_ptr<TimelineEntries>& entries);
  /// Gives a new entry its number and records it, or records a later state of an entry.
  void put(TimelineEntry& entry);
  /// Returns a copy of `entries`, which the timeline records into.
  std::map<uint64_t, TimelineEntry> read(const TimelineEntries& entries);
  /// Returns the nanoseconds since 1970 from a clock that never goes back.
  static int64_t now();

 private:
  std::atomic<bool> is_on_ = false;
  Mutex mutex_;
  uint64_t last_number_ FSDP_GUARDED_BY(mutex_) = 0;
  std::vector<std::shared_ptr<TimelineEntries>> recorded_ FSDP_GUARDED_BY(mutex_);
};

/// Records one entry on a timeline, from the Span's construction to its end. A Span does nothing if the timeline is off
/// or null.
///
///     const Span span(rank.timeline, "reduce", group.name);
class Span {
 public:
  Span() = default;
  Span(const std::shared_ptr<Timeline>& timeline, std::string_view name, std::string_view subject);
  /// Begins `entry` on `timeline`, which must be on.
  Span(std::shared_ptr<Timeline> timeline, TimelineEntry entry);
  Span(Span&&) noexcept = default;
  Span& operator=(Span&& other) noexcept;
  /// Ends the entry: as failed if an exception unwinds the stack, otherwise as done.
  ~Span() { end(std::uncaught_exceptions() > exceptions_); }

  /// Ends the entry. Later calls do nothing.
  void end(bool has_failed = false);

 private:
  std::shared_ptr<Timeline> timeline_;  // null if the Span records nothing or has ended
  TimelineEntry entry_;
  int exceptions_ = 0;
};

}  // namespace fsdp
