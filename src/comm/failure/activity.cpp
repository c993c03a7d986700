#include "comm/failure/activity.h"

#include <algorithm>

namespace fsdp {
namespace {

thread_local bool t_is_left_out = false;

}  // namespace

void Activity::leave_out_this_thread() { t_is_left_out = true; }

bool Activity::is_this_thread_left_out() { return t_is_left_out; }

void Activity::add_wait(int change) {
  static thread_local const auto alive = std::make_shared<char>();
  ++moves_;
  if (t_is_left_out) return;
  const std::lock_guard lock(mutex_);
  auto& caller = callers_[std::this_thread::get_id()];
  // The number of a thread that has ended may be given to another one.
  if (caller.alive.expired()) caller = {alive, 0};
  caller.waits += change;
}

bool Activity::is_at_rest() {
  const std::lock_guard lock(mutex_);
  std::erase_if(callers_, [](const auto& entry) { return entry.second.alive.expired(); });
  return !callers_.empty() &&
         std::all_of(callers_.begin(), callers_.end(), [](const auto& entry) { return entry.second.waits > 0; });
}

}  // namespace fsdp
