#pragma once
/// \file
/// Counters of the data that a rank exchanges with other ranks.

#include <fsdp/traffic.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

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
  /// Number of calls to the rendezvous store.
  std::atomic<int64_t> store_calls = 0;
  Traffic total() const { return {between_hosts.total(), inside_host.total()}; }
};

/// Counts the messages and bytes that this rank exchanges with each rank of a group.
struct CountByPeer {
  void note_sent(int peer, size_t bytes, bool is_header) const {
    ++(is_header ? traffic->headers : traffic->messages);
    with(peer).add_sent(bytes);
  }
  void note_received(int peer, size_t bytes) const { with(peer).add_received(bytes); }
  LinkCount& with(int peer) const {
    const auto host_of = [&](int number) { return hosts[static_cast<size_t>(number)]; };
    return host_of(peer) == host_of(rank) ? traffic->inside_host : traffic->between_hosts;
  }

  const std::shared_ptr<TrafficCount> traffic;
  const std::vector<int> hosts;  ///< `hosts[rank]` is the number of that rank's host
  const int rank = 0;
};

}  // namespace fsdp
