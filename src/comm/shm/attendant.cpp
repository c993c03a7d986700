#include "comm/shm/attendant.h"

#include <c10/util/thread_name.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace fsdp::shm {

class Attendant::Thread {
 public:
  ~Thread() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

  void add(std::function<void()> wait) {
    const std::lock_guard lock(mutex_);
    waits_.push_back(std::move(wait));
    changed_.notify_all();
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  }

 private:
  void run() {
    c10::setThreadName("fsdp-attendant");
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stopping_ || !waits_.empty(); });
      if (stopping_) return;
      auto wait = std::move(waits_.front());
      waits_.pop_front();
      lock.unlock();
      try {
        wait();
      } catch (const std::exception&) {
        // Of the collective, which keeps it.
      }
      wait = nullptr;  // what goes with it may take locks under which `add` is called
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waits_;
  bool stopping_ = false;
  std::thread thread_;
};

Attendant::Attendant() : thread_(std::make_unique<Thread>()) {}
Attendant::~Attendant() = default;

void Attendant::add(std::function<void()> wait) { thread_->add(std::move(wait)); }

// A condition variable on which a thread slept when the process was forked cannot be destroyed in the child.
void Attendant::abandon() { static_cast<void>(thread_.release()); }

}  // namespace fsdp::shm
