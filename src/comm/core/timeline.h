#pragma once
/// \file
/// What a rank does, written down while somebody asks for it: a trace, a flight recorder.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/core/mutex.h"

namespace fsdp {

/// Whether a thread of the program does it, or it goes on beside them: a collective.
enum class Track : uint8_t { kCompute, kCommunication };

/// How far it is. A collective that has begun has yet to hear from the other ranks; agreed: they run the same one, and
/// data moves.
enum class Stage : uint8_t { kBegun, kAgreed, kDone, kFailed };
std::string_view name_of(Stage stage);

/// One thing that a rank does or did. It lies in files as it does in memory; all zeros is none.
struct TimelineEntry {
  static constexpr size_t kNameBytes = 24, kSubjectBytes = 64, kOrderBytes = 16;

  /// From 1, in the order of beginnings on this rank.
  uint64_t number = 0;
  /// Nanoseconds since 1970; an end of 0: it goes on.
  int64_t begun = 0, ended = 0;
  /// Of a collective: its number in its order, and the bytes of all ranks' data.
  uint64_t sequence = 0, bytes = 0;
  /// The system's number of the thread in which it began.
  int32_t thread = 0;
  Track track = Track::kCompute;
  Stage stage = Stage::kBegun;
  std::array<uint8_t, 2> unused{};
  /// Each ends with a zero, and is cut if it is longer.
  std::array<char, kNameBytes> name{};
  std::array<char, kSubjectBytes> subject{};  // the group
  std::array<char, kOrderBytes> order{};      // of a collective

  static TimelineEntry of(Track track, std::string_view name, std::string_view subject, std::string_view order = {});
};
static_assert(sizeof(TimelineEntry) == 152);

/// The newest entries, as many as there is room for. Thread safety: under the timeline's lock; only `read` may run
/// beside `put`, in another process that maps the memory, and leaves out what is being written.
class EntryRing {
 public:
  /// Memory of its own, which the system gives as it is written.
  explicit EntryRing(size_t entries);
  /// `slots` are zeros at first, and `owner` keeps them.
  EntryRing(std::span<TimelineEntry> slots, std::shared_ptr<void> owner) : owner_(std::move(owner)), slots_(slots) {}

  /// A new entry, or a later state of one that is still there.
  void put(const TimelineEntry& entry);
  /// In the order of their numbers.
  std::vector<TimelineEntry> entries() const { return read(slots_); }
  static std::vector<TimelineEntry> read(std::span<const TimelineEntry> slots);

 private:
  std::shared_ptr<void> owner_;
  std::span<TimelineEntry> slots_;
};

/// Of a rank: all its communicators and groups write here. Thread safety: all of it.
class Timeline {
 public:
  /// Whether anybody asks: all that an entry costs where nobody does.
  bool is_on() const { return is_on_.load(std::memory_order_relaxed); }
  void record_into(std::shared_ptr<EntryRing> ring);
  void forget(const std::shared_ptr<EntryRing>& ring);
  /// Gives the entry a number, the time and the thread.
  void begin(TimelineEntry& entry);
  void put(const TimelineEntry& entry);
  /// What is in one of its rings.
  std::vector<TimelineEntry> entries_of(const EntryRing& ring);
  /// Nanoseconds since 1970, which never go back.
  int64_t now() const;

  /// Where the flight recorder writes when something fails; empty: there is none. Set before anybody else knows it.
  std::string flight_file;

 private:
  const int64_t epoch_ = since_1970_at_zero();
  static int64_t since_1970_at_zero();

  std::atomic<bool> is_on_ = false;
  Mutex mutex_;
  uint64_t last_number_ FSDP_GUARDED_BY(mutex_) = 0;
  std::vector<std::shared_ptr<EntryRing>> rings_ FSDP_GUARDED_BY(mutex_);
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
  Span(std::shared_ptr<Timeline> timeline, const TimelineEntry& entry);
  Span(Span&&) noexcept = default;
  Span& operator=(Span&& other) noexcept;
  /// Done, or failed if an exception passes.
  ~Span() { end_by_scope(); }

  void reach(Stage stage);
  /// Later calls do nothing.
  void end(Stage stage);

 private:
  void end_by_scope() noexcept;

  std::shared_ptr<Timeline> timeline_;  // null: it is empty or has ended
  TimelineEntry entry_;
  int exceptions_ = 0;
};

}  // namespace fsdp
