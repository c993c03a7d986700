#pragma once
/// \file
/// A rendezvous store that may be in a process which is stopped.

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

namespace fsdp {

/// A store did not answer in time.
class StoreIsSilent : public c10::DistStoreError {
  using DistStoreError::DistStoreError;
};

/// `store`, of which every call ends: those that wait for keys a second after their own time, the others after
/// `limit`, which `setTimeout` changes. A store that did not answer in time once is silent for good: every later call,
/// also on clones, throws StoreIsSilent at once. LibTorch alone bounds some of its waits only: `clone`, for one, waits
/// for ever for a host that is stopped, whose connections the system still accepts. `calls` counts them all; null:
/// nobody does.
c10::intrusive_ptr<c10d::Store> make_bounded_store(c10::intrusive_ptr<c10d::Store> store,
                                                   std::chrono::milliseconds limit,
                                                   std::shared_ptr<std::atomic<int64_t>> calls = nullptr);

}  // namespace fsdp
