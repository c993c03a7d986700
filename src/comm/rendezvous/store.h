#pragma once
/// \file
/// The store over which ranks find each other, which may be in a process that is stopped.

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "comm/rendezvous/environment.h"

namespace fsdp {

/// Connects to the store at the rendezvous, which rank 0 hosts unless the launcher does.
///
/// A process keeps its connections, and rank 0 the store, until `close_stores()`: a rank may ask for its next group
/// before rank 0 has given up the last one. Throws UsageError if the port is taken; if nobody answers there within
/// `timeout` PeerLost, naming rank 0, or Error where the launcher hosts the store. Thread safe.
c10::intrusive_ptr<c10d::Store> connect_store(const RendezvousParameters& rendezvous,
                                              std::chrono::milliseconds timeout);

/// Closes what `connect_store` opened, as soon as nobody uses it.
void close_stores();

/// `store`, of which every call ends: those that wait for keys a second after their own time, the others after
/// `limit`, which `setTimeout` changes. A store that did not answer in time once is silent for good: every later call,
/// also on clones, throws at once. LibTorch alone bounds some of its waits only: `clone`, for one, waits
/// for ever for a host that is stopped, whose connections the system still accepts. `calls` counts them all; null:
/// nobody does.
c10::intrusive_ptr<c10d::Store> make_bounded_store(c10::intrusive_ptr<c10d::Store> store,
                                                   std::chrono::milliseconds limit,
                                                   std::shared_ptr<std::atomic<int64_t>> calls = nullptr);

}  // namespace fsdp
