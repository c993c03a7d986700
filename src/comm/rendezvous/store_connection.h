#pragma once
/// \file
/// The store over which ranks find each other.

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/rendezvous/environment.h"

#include <chrono>

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

}  // namespace fsdp
