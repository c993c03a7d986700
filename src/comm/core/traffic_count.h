#pragma once
/// \file
/// Counters of the data that a rank exchanges with other ranks.

#include <fsdp/traffic.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <set>
#include <vector>

#include "comm/core/mutex.h"
#include "comm/core/ranks.h"

namespace fsdp {

/// Bytes that a rank sent and received over one kind of link. Thread-safe.
class LinkCount {
 public:
  void add_sent(size_t bytes) { sent_ += static_cast<int64_t>(bytes); }
  void add_received(size_t bytes) { received_ += static_cast<int64_t>(bytes); }
  Traffic::Link total() const { return {sent_, received_}; }

 private:
  std::atomic<int64_t> sent_ = 0, received_ = 0;
};

/// The counters of a rank; all its communicators write to them. Thread-safe.
struct TrafficCount {
  LinkCount between_hosts, inside_host;
  /// Messages that this rank sent over a network: `headers` describe an operation, `messages` have only data.
  std::atomic<int64_t> headers = 0, messages = 0;
  /// Number of calls of the rendezvous store.
  std::atomic<int64_t> store_calls = 0;
  Traffic total() const { return {between_hosts.total(), inside_host.total()}; }

  /// Counts a message to `peer`, a global rank.
  void add_message(int peer, bool is_header) {
    ++(is_header ? headers : messages);
    const MutexLock lock(mutex_);
    peers_.insert(peer);
  }
  /// Returns the number of ranks to which this rank sent messages.
  int64_t peers() const {
    const MutexLock lock(mutex_);
    return std::ssize(peers_);
  }

 private:
  mutable Mutex mutex_;
  std::set<int> peers_ FSDP_GUARDED_BY(mutex_);
};

/// Counts the messages and bytes that this rank exchanges with each rank of a group.
struct CountByPeer {
  void note_sent(int peer, size_t bytes, bool is_header) const {
    traffic->add_message(ranks.name_of(peer), is_header);
    with(peer).add_sent(bytes);
  }
  void note_received(int peer, size_t bytes) const { with(peer).add_received(bytes); }
  LinkCount& with(int peer) const {
    const auto host_of = [&](int rank) { return hosts[static_cast<size_t>(rank)]; };
    return host_of(peer) == host_of(ranks.rank) ? traffic->inside_host : traffic->between_hosts;
  }

  const std::shared_ptr<TrafficCount> traffic;
  const std::vector<int> hosts;  ///< `hosts[rank]` is the number of that rank's host
  const Ranks ranks;
};

}  // namespace fsdp
