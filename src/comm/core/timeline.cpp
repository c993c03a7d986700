#include "comm/core/timeline.h"

#include <unistd.h>

#include <chrono>
#include <exception>
#include <utility>

namespace fsdp {
namespace {

int64_t steady_nanoseconds() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

int64_t Timeline::since_1970_at_zero() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count() - steady_nanoseconds();
}

int64_t Timeline::now() const { return since_1970_at_zero_ + steady_nanoseconds(); }

void Timeline::record_into(std::shared_ptr<TimelineEntries> entries) {
  const MutexLock lock(mutex_);
  recorded_.push_back(std::move(entries));
  is_on_ = true;
}

void Timeline::forget(const std::shared_ptr<TimelineEntries>& entries) {
  const MutexLock lock(mutex_);
  std::erase(recorded_, entries);
  is_on_ = !recorded_.empty();
}

void Timeline::begin(TimelineEntry& entry) {
  entry.begun = now();
  entry.thread = gettid();
  const MutexLock lock(mutex_);
  entry.number = ++last_number_;
  put_held(entry);
}

void Timeline::put(const TimelineEntry& entry) {
  const MutexLock lock(mutex_);
  put_held(entry);
}

// An entry that was erased for lack of room still has the smallest number, so it is erased again.
void Timeline::put_held(const TimelineEntry& entry) {
  for (const auto& recorded : recorded_) {
    auto& entries = recorded->entries;
    entries.insert_or_assign(entry.number, entry);
    if (entries.size() > recorded->room) entries.erase(entries.begin());
  }
}

std::vector<TimelineEntry> Timeline::read(const TimelineEntries& entries) {
  const MutexLock lock(mutex_);
  std::vector<TimelineEntry> all;
  for (const auto& [number, entry] : entries.entries) all.push_back(entry);
  return all;
}

Span::Span(const std::shared_ptr<Timeline>& timeline, Track track, std::string_view name, std::string_view subject,
           uint64_t bytes) {
  if (timeline == nullptr || !timeline->is_on()) return;
  *this = Span(timeline, {.track = track, .name = std::string(name), .subject = std::string(subject), .bytes = bytes});
}

Span::Span(std::shared_ptr<Timeline> timeline, TimelineEntry entry)
    : timeline_(std::move(timeline)), entry_(std::move(entry)), exceptions_(std::uncaught_exceptions()) {
  timeline_->begin(entry_);
}

Span& Span::operator=(Span&& other) noexcept {
  end_by_scope();
  timeline_ = std::move(other.timeline_);
  entry_ = std::move(other.entry_);
  exceptions_ = other.exceptions_;
  return *this;
}

void Span::end(bool has_failed) {
  if (!timeline_) return;
  entry_.ended = timeline_->now();
  entry_.has_failed = has_failed;
  timeline_->put(entry_);
  timeline_.reset();
}

void Span::end_by_scope() noexcept {
  if (timeline_) end(std::uncaught_exceptions() > exceptions_);
}

}  // namespace fsdp
