#include "comm/shm/attendant.h"

#include <c10/util/thread_name.h>

#include <exception>
#include <utility>

#include "comm/failure/activity.h"

namespace fsdp::shm {

Attendant::~Attendant() {
  if (!thread_) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_->join();
}

void Attendant::add(std::function<void()> wait) {
  const std::lock_guard lock(mutex_);
  waits_.push_back(std::move(wait));
  changed_.notify_all();
  if (!thread_) thread_ = std::make_unique<std::thread>([this] { run(); });
}

void Attendant::run() {
  c10::setThreadName("fsdp-attendant");
  Activity::leave_out_this_thread();
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !waits_.empty(); });
    if (stopping_) return;
    const auto wait = std::move(waits_.front());
    waits_.pop_front();
    lock.unlock();
    try {
      wait();
    } catch (const std::exception&) {
      // Of the collective, which keeps it.
    }
    lock.lock();
  }
}

}  // namespace fsdp::shm
