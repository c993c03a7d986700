#pragma once
/// \file
/// A thread that talks to the store. The store may never answer, because it is in the launcher of node 0.

#include <functional>
#include <future>
#include <memory>
#include <type_traits>

namespace fsdprun {

/// Runs tasks one after another in a thread of its own, so callers do not wait for tasks that may never end. Most tasks
/// talk to the store.
class StoreThread {
 public:
  StoreThread();
  /// Waits for at most one second for the tasks. If they take longer, the thread continues without this object.
  ~StoreThread();
  StoreThread(const StoreThread&) = delete;
  StoreThread& operator=(const StoreThread&) = delete;

  /// Runs `ask` in the thread and returns a future of its result, or of the exception that it throws. `ask` must own
  /// the objects that it uses.
  template <class Ask>
  auto post(Ask ask) -> std::future<std::invoke_result_t<Ask&>> {
    const auto task = std::make_shared<std::packaged_task<std::invoke_result_t<Ask&>()>>(std::move(ask));
    auto answer = task->get_future();
    push([task] { (*task)(); });
    return answer;
  }

 private:
  struct State;
  void push(std::function<void()> task);

  std::shared_ptr<State> state_;
};

}  // namespace fsdprun
