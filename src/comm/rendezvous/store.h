#pragma once
/// \file
/// The store over which ranks find each other, and a wrapper that bounds how long each call to it takes.

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "comm/rendezvous/environment.h"

namespace fsdp {

/// Connects to the store at the rendezvous. Rank 0 hosts the store unless the launcher does.
///
/// A process keeps its connections, and rank 0 the store, until `close_stores()`, because another rank may ask for its
/// next process group before rank 0 has released the last one. Throws UsageError if the port is taken. If nobody
/// answers within `timeout`, throws PeerLost with rank 0, or Error if the launcher hosts the store. Thread-safe.
c10::intrusive_ptr<c10d::Store> connect_store(const RendezvousParameters& rendezvous,
                                              std::chrono::milliseconds timeout);

/// Releases the connections that `connect_store` made. Each is closed when its last user releases it.
void close_stores();

/// Returns a wrapper of `store` whose calls always end: calls that wait for keys end at most a second after their own
/// timeout, other calls after `limit`, which `setTimeout` changes. Once the store has not answered in time, every later
/// call throws at once, also on clones. LibTorch bounds only some of its waits: `clone`, for instance, waits for ever
/// for a host that is stopped, because the system still accepts connections. `calls` counts all calls.
c10::intrusive_ptr<c10d::Store> make_bounded_store(c10::intrusive_ptr<c10d::Store> store,
                                                   std::chrono::milliseconds limit,
                                                   std::shared_ptr<std::atomic<int64_t>> calls);

}  // namespace fsdp
