#pragma once
/// \file
/// A rendezvous store that may be in a process which is stopped, and to which others may write too.

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "comm/posix/signals.h"

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

/// A store did not answer in time.
class StoreIsSilent : public c10::DistStoreError {
  using DistStoreError::DistStoreError;
};

/// `store`, of which every call ends: those that wait for keys a second after their own time, the others after
/// `limit`, which `setTimeout` changes. A store that did not answer in time once is silent for good: every later call,
/// also on clones, throws StoreIsSilent at once. LibTorch alone bounds some of its waits only: `clone`, for one, waits
/// for ever for a host that is stopped, whose connections the system still accepts. `calls` counts them all; null:
/// nobody does.
///
/// Unless `token` is empty only values count that somebody has written who knows it: each carries a code of its key and
/// its value (see message_code). Reading any other one throws Error. Counters (`add`) carry none, and nothing is
/// hidden: who can reach the store can read it, and can spoil it, but not be taken for a rank of the job.
c10::intrusive_ptr<c10d::Store> make_bounded_store(c10::intrusive_ptr<c10d::Store> store,
                                                   std::chrono::milliseconds limit,
                                                   std::shared_ptr<std::atomic<int64_t>> calls = nullptr,
                                                   const std::string& token = "");

}  // namespace fsdp
