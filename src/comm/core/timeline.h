#pragma once
/// \file
/// What a rank does, written down while a trace records it.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/core/mutex.h"

namespace fsdp {

/// Whether a thread of the program does it, or it goes on beside them: a collective.
enum class Track : uint8_t { kCompute, kCommunication };

/// One thing that a rank does or did.
struct TimelineEntry {
  Track track = Track::kCompute;
  std::string name = {}, subject = {};  ///< the subject: a group
  /// Of a collective: its number in its order, and the bytes of all ranks' data.
  uint64_t sequence = 0, bytes = 0;
  bool has_failed = false;
  /// From 1, in the order of beginnings on this rank.
  uint64_t number = 0;
  /// Nanoseconds since 1970; an end of 0: it goes on.
  int64_t begun = 0, ended = 0;
  /// The system's number of the thread in which it began.
  int32_t thread = 0;
};

/// The newest entries by their numbers, as many as there is room for. Under the timeline's lock.
struct TimelineEntries {
  explicit TimelineEntries(size_t its_room) : room(its_room) {}
  const size_t room;
  std::map<uint64_t, TimelineEntry> entries;
};

/// Of a rank: all its communicators and groups write here. Thread safety: all of it.
class Timeline {
 public:
  /// Whether anybody asks: all that an entry costs where nobody does.
  bool is_on() const { return is_on_.load(std::memory_order_relaxed); }
  void record_into(std::shared_ptr<TimelineEntries> entries);
  void forget(const std::shared_ptr<TimelineEntries>& entries);
  /// Gives the entry a number, the time and the thread.
  void begin(TimelineEntry& entry);
  /// A later state of an entry.
  void put(const TimelineEntry& entry);
  /// What is in one of those into which it records, in the order of numbers.
  std::vector<TimelineEntry> read(const TimelineEntries& entries);
  /// Nanoseconds since 1970, which never go back.
  int64_t now() const;

 private:
  void put_held(const TimelineEntry& entry) FSDP_REQUIRES(mutex_);

  const int64_t since_1970_at_zero_ = since_1970_at_zero();
  static int64_t since_1970_at_zero();

  std::atomic<bool> is_on_ = false;
  Mutex mutex_;
  uint64_t last_number_ FSDP_GUARDED_BY(mutex_) = 0;
  std::vector<std::shared_ptr<TimelineEntries>> recorded_ FSDP_GUARDED_BY(mutex_);
};

/// An entry from its beginning to its end. Empty where the timeline is off or null.
///
///     const Span span(rank.timeline, Track::kCompute, "reduce", group.name);
class Span {
 public:
  Span() = default;
  Span(const std::shared_ptr<Timeline>& timeline, Track track, std::string_view name, std::string_view subject,
       uint64_t bytes = 0);
  /// Begins `entry` on a timeline that is on.
  Span(std::shared_ptr<Timeline> timeline, TimelineEntry entry);
  Span(Span&&) noexcept = default;
  Span& operator=(Span&& other) noexcept;
  /// Done, or failed if an exception passes.
  ~Span() { end_by_scope(); }

  /// Later calls do nothing.
  void end(bool has_failed = false);

 private:
  void end_by_scope() noexcept;

  std::shared_ptr<Timeline> timeline_;  // null: it is empty or has ended
  TimelineEntry entry_;
  int exceptions_ = 0;
};

}  // namespace fsdp
