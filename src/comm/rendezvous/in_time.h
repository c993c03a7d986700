#pragma once
/// \file
/// Calls of LibTorch's that may never return.

#include "comm/posix/pipe_signal.h"

#include <chrono>
#include <future>
#include <optional>
#include <thread>
#include <utility>

namespace fsdp {

/// The result of `act`, which runs in a thread of its own; nothing if that takes longer than `limit`: the thread is
/// left behind then, so `act` must own what it uses. Rethrows what `act` throws.
template <class Act>
auto run_in_time(std::chrono::milliseconds limit, Act act) -> std::optional<decltype(act())> {
  std::packaged_task<decltype(act())()> task([act = std::move(act)] {
    const PipeSignalBlocked no_pipe_signal;
    return act();
  });
  auto result = task.get_future();
  std::thread thread(std::move(task));
  if (result.wait_for(limit) == std::future_status::timeout) {
    thread.detach();
    return std::nullopt;
  }
  thread.join();
  return result.get();
}

}  // namespace fsdp
