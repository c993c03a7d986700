#pragma once
/// \file
/// The store that the nodes share, which may never answer: it lives in the launcher of node 0.

#include <functional>
#include <future>
#include <memory>
#include <type_traits>

namespace fsdprun {

/// Opens, asks and tells the store, or whatever else may never answer, in a thread of its own, one thing after the
/// other, so that nobody need wait for it.
class StoreThread {
 public:
  StoreThread();
  /// Leaves the thread behind if the store does not answer.
  ~StoreThread();
  StoreThread(const StoreThread&) = delete;
  StoreThread& operator=(const StoreThread&) = delete;

  /// `ask` must own what it uses. The future also has what it throws.
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
