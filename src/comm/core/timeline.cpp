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
  switch (stage) {
    case Stage::kBegun:
      return "begun";
    case Stage::kAgreed:
      return "agreed";
    case Stage::kDone:
      return "done";
    case Stage::kFailed:
      return "failed";
  }
  return "unknown";
}

TimelineEntry TimelineEntry::of(Track track, std::string_view name, std::string_view subject,
                                std::string_view order) {
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
  const std::lock_guard lock(mutex_);
  rings_.push_back(std::move(ring));
  is_on_ = true;
}

void Timeline::forget(const std::shared_ptr<EntryRing>& ring) {
  const std::lock_guard lock(mutex_);
  std::erase(rings_, ring);
  is_on_ = !rings_.empty();
}

void Timeline::begin(TimelineEntry& entry) {
  entry.begun = now();
  entry.thread = this_thread();
  const std::lock_guard lock(mutex_);
  entry.number = ++last_number_;
  for (const auto& ring : rings_) ring->put(entry);
}

void Timeline::put(const TimelineEntry& entry) {
  const std::lock_guard lock(mutex_);
  for (const auto& ring : rings_) ring->put(entry);
}

std::vector<TimelineEntry> Timeline::entries_of(const EntryRing& ring) {
  const std::lock_guard lock(mutex_);
  return ring.entries();
}

void Span::begin(const std::shared_ptr<Timeline>& timeline, const TimelineEntry& entry) {
  live_ = std::make_unique<Live>(Live{timeline, entry, std::uncaught_exceptions()});
  timeline->begin(live_->entry);
}

void Span::reach(Stage stage) {
  if (!live_) return;
  live_->entry.stage = stage;
  live_->timeline->put(live_->entry);
}

void Span::end(Stage stage) {
  if (!live_) return;
  live_->entry.ended = live_->timeline->now();
  reach(stage);
  live_.reset();
}

void Span::end_by_scope() noexcept {
  if (live_) end(std::uncaught_exceptions() > live_->exceptions ? Stage::kFailed : Stage::kDone);
}

}  // namespace fsdp
