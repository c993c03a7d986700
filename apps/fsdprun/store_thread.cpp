#include "store_thread.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace fsdprun {

/// The state of a StoreThread. It is shared with the thread, which may outlive the StoreThread.
struct StoreThread::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> tasks;
  bool is_over = false, has_ended = false;

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return is_over || !tasks.empty(); });
      if (tasks.empty()) break;
      auto task = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      task();
      task = nullptr;
      lock.lock();
    }
    has_ended = true;
    changed.notify_all();
  }
};

StoreThread::StoreThread() : state_(std::make_shared<State>()) {
  std::thread([state = state_] { state->run(); }).detach();
}

StoreThread::~StoreThread() {
  constexpr std::chrono::seconds kLastWords{1};
  std::unique_lock lock(state_->mutex);
  state_->is_over = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, kLastWords, [this] { return state_->has_ended; });
}

void StoreThread::push(std::function<void()> task) {
  std::lock_guard lock(state_->mutex);
  state_->tasks.push_back(std::move(task));
  state_->changed.notify_all();
}

}  // namespace fsdprun
