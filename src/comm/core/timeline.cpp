#include "comm/core/timeline.h"

#include <unistd.h>

#include <chrono>
#include <utility>

namespace fsdp {

int64_t Timeline::now() {
  using std::chrono::nanoseconds, std::chrono::steady_clock, std::chrono::system_clock;
  const auto steady = [] { return nanoseconds(steady_clock::now().time_since_epoch()).count(); };
  static const int64_t since_1970_at_zero = nanoseconds(system_clock::now().time_since_epoch()).count() - steady();
  return since_1970_at_zero + steady();
}

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

// A later state of an entry that was erased for lack of room is erased at once, because its number is the smallest.
void Timeline::put(TimelineEntry& entry) {
  const MutexLock lock(mutex_);
  if (entry.number == 0) entry.number = ++last_number_;
  for (const auto& recorded : recorded_) {
    auto& entries = recorded->entries;
    entries.insert_or_assign(entry.number, entry);
    if (entries.size() > recorded->room) entries.erase(entries.begin());
  }
}

std::map<uint64_t, TimelineEntry> Timeline::read(const TimelineEntries& entries) {
  const MutexLock lock(mutex_);
  return entries.entries;
}

Span::Span(const std::shared_ptr<Timeline>& timeline, std::string_view name, std::string_view subject) {
  if (timeline == nullptr || !timeline->is_on()) return;
  *this = Span(timeline, {.name = std::string(name), .subject = std::string(subject)});
}

Span::Span(std::shared_ptr<Timeline> timeline, TimelineEntry entry)
    : timeline_(std::move(timeline)), entry_(std::move(entry)), exceptions_(std::uncaught_exceptions()) {
  entry_.begun = Timeline::now();
  entry_.thread = gettid();
  timeline_->put(entry_);
}

Span& Span::operator=(Span&& other) noexcept {
  end(std::uncaught_exceptions() > exceptions_);
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

}  // namespace fsdp
