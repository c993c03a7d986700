#include "store_thread.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace fsdprun {

/// Shared with the thread, which may outlive the StoreThread.
struct StoreThread::State {
  explicit State(c10::intrusive_ptr<c10d::Store> its_store) : store(std::move(its_store)) {}

  const c10::intrusive_ptr<c10d::Store> store;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void(c10d::Store&)>> tasks;
  bool is_over = false, has_ended = false;

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return is_over || !tasks.empty(); });
      if (tasks.empty()) break;
      const auto task = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      task(*store);
      lock.lock();
    }
    has_ended = true;
    changed.notify_all();
  }
};

StoreThread::StoreThread(c10::intrusive_ptr<c10d::Store> store) : state_(std::make_shared<State>(std::move(store))) {
  std::thread([state = state_] { state->run(); }).detach();
}

StoreThread::~StoreThread() {
  constexpr std::chrono::seconds kLastWords{1};
  std::unique_lock lock(state_->mutex);
  state_->is_over = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, kLastWords, [this] { return state_->has_ended; });
}

void StoreThread::push(std::function<void(c10d::Store&)> task) {
  std::lock_guard lock(state_->mutex);
  state_->tasks.push_back(std::move(task));
  state_->changed.notify_all();
}

}  // namespace fsdprun
