#include "comm/core/timeline.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

namespace fsdp {
namespace {

template <size_t kBytes>
void fill(std::array<char, kBytes>& text, std::string_view with) {
  std::copy_n(with.begin(), std::min(with.size(), kBytes - 1), text.begin());
}

int64_t steady_nanoseconds() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int32_t this_thread() {
  thread_local const int32_t number = gettid();
  return number;
}

}  // namespace

std::string_view name_of(Stage stage) {
  constexpr std::array<std::string_view, 4> kNames{"begun", "agreed", "done", "failed"};
  const auto number = static_cast<size_t>(stage);
  return number < kNames.size() ? kNames[number] : "unknown";
}

TimelineEntry TimelineEntry::of(Track track, std::string_view name, std::string_view subject, std::string_view order) {
  TimelineEntry entry;
  entry.track = track;
  fill(entry.name, name);
  fill(entry.subject, subject);
  fill(entry.order, order);
  return entry;
}

EntryRing::EntryRing(size_t entries) : owner_(std::calloc(entries, sizeof(TimelineEntry)), &std::free) {
  if (owner_ == nullptr) throw std::bad_alloc();
  slots_ = {static_cast<TimelineEntry*>(owner_.get()), entries};
}

// A reader that sees the number before and after it has read the rest has read one entry.
void EntryRing::put(const TimelineEntry& entry) {
  auto& slot = slots_[entry.number % slots_.size()];
  if (slot.number > entry.number) return;  // it was written over
  const std::atomic_ref<uint64_t> number(slot.number);
  number.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(reinterpret_cast<char*>(&slot) + sizeof(entry.number),
              reinterpret_cast<const char*>(&entry) + sizeof(entry.number), sizeof(entry) - sizeof(entry.number));
  number.store(entry.number, std::memory_order_release);
}

std::vector<TimelineEntry> EntryRing::read(std::span<const TimelineEntry> slots) {
  std::vector<TimelineEntry> entries;
  for (const auto& slot : slots) {
    const std::atomic_ref<uint64_t> number(const_cast<uint64_t&>(slot.number));
    const uint64_t before = number.load(std::memory_order_acquire);
    if (before == 0) continue;
    TimelineEntry entry;
    std::memcpy(&entry, &slot, sizeof(entry));
    std::atomic_thread_fence(std::memory_order_acquire);
    if (number.load(std::memory_order_relaxed) != before) continue;
    entry.number = before;
    entries.push_back(entry);
  }
  std::ranges::sort(entries, {}, &TimelineEntry::number);
  return entries;
}

int64_t Timeline::since_1970_at_zero() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count() - steady_nanoseconds();
}

int64_t Timeline::now() const { return epoch_ + steady_nanoseconds(); }

void Timeline::record_into(std::shared_ptr<EntryRing> ring) {
  const MutexLock lock(mutex_);
  rings_.push_back(std::move(ring));
  is_on_ = true;
}

void Timeline::forget(const std::shared_ptr<EntryRing>& ring) {
  const MutexLock lock(mutex_);
  std::erase(rings_, ring);
  is_on_ = !rings_.empty();
}

void Timeline::begin(TimelineEntry& entry) {
  entry.begun = now();
  entry.thread = this_thread();
  const MutexLock lock(mutex_);
  entry.number = ++last_number_;
  for (const auto& ring : rings_) ring->put(entry);
}

void Timeline::put(const TimelineEntry& entry) {
  const MutexLock lock(mutex_);
  for (const auto& ring : rings_) ring->put(entry);
}

std::vector<TimelineEntry> Timeline::entries_of(const EntryRing& ring) {
  const MutexLock lock(mutex_);
  return ring.entries();
}

Span::Span(const std::shared_ptr<Timeline>& timeline, Track track, std::string_view name, std::string_view subject,
           uint64_t bytes) {
  if (timeline == nullptr || !timeline->is_on()) return;
  auto entry = TimelineEntry::of(track, name, subject);
  entry.bytes = bytes;
  *this = Span(timeline, entry);
}

Span::Span(std::shared_ptr<Timeline> timeline, const TimelineEntry& entry)
    : timeline_(std::move(timeline)), entry_(entry), exceptions_(std::uncaught_exceptions()) {
  timeline_->begin(entry_);
}

Span& Span::operator=(Span&& other) noexcept {
  end_by_scope();
  timeline_ = std::move(other.timeline_);
  entry_ = other.entry_;
  exceptions_ = other.exceptions_;
  return *this;
}

void Span::reach(Stage stage) {
  if (!timeline_) return;
  entry_.stage = stage;
  timeline_->put(entry_);
}

void Span::end(Stage stage) {
  if (!timeline_) return;
  entry_.ended = timeline_->now();
  reach(stage);
  timeline_.reset();
}

void Span::end_by_scope() noexcept {
  if (timeline_) end(std::uncaught_exceptions() > exceptions_ ? Stage::kFailed : Stage::kDone);
}

}  // namespace fsdp
