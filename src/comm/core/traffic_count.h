#pragma once
/// \file
/// Counting what a rank exchanges with others.

#include <fsdp/traffic.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "comm/core/ranks.h"

namespace fsdp {

/// What a rank sent and received over one kind of link. Thread safety: all of it.
class LinkCount {
 public:
  void add_sent(size_t bytes) { sent_ += static_cast<int64_t>(bytes); }
  void add_received(size_t bytes) { received_ += static_cast<int64_t>(bytes); }
  Traffic::Link total() const { return {sent_, received_}; }

 private:
  std::atomic<int64_t> sent_ = 0, received_ = 0;
};

/// Of a rank: all its communicators count here. Thread safety: all of it.
struct TrafficCount {
  LinkCount between_hosts, inside_host;
  /// Messages that it sent over a network: those that say what an operation is, and those that have data alone.
  std::atomic<int64_t> headers = 0, messages = 0;
  /// Calls of the rendezvous store.
  std::atomic<int64_t> store_calls = 0;
  Traffic total() const { return {between_hosts.total(), inside_host.total()}; }

  /// `peer`: a global rank.
  void add_message(int peer, bool is_header) {
    ++(is_header ? headers : messages);
    const std::lock_guard lock(mutex_);
    peers_.insert(peer);
  }
  /// How many ranks it sent messages to.
  int64_t peers() const {
    const std::lock_guard lock(mutex_);
    return std::ssize(peers_);
  }

 private:
  mutable std::mutex mutex_;
  std::set<int> peers_;
};

/// Which of the counts is that of a peer.
class CountByPeer {
 public:
  /// `hosts`: by rank, the number of its host.
  CountByPeer(std::shared_ptr<TrafficCount> traffic, std::vector<int> hosts, Ranks ranks)
      : traffic_(std::move(traffic)),
        hosts_(std::move(hosts)),
        ranks_(std::move(ranks)),
        own_host_(hosts_[static_cast<size_t>(ranks_.rank)]) {}
  void add_message(int peer, bool is_header) const { traffic_->add_message(ranks_.name_of(peer), is_header); }
  LinkCount& with(int peer) const {
    return hosts_[static_cast<size_t>(peer)] == own_host_ ? traffic_->inside_host : traffic_->between_hosts;
  }

 private:
  const std::shared_ptr<TrafficCount> traffic_;
  const std::vector<int> hosts_;
  const Ranks ranks_;
  const int own_host_;
};

}  // namespace fsdp
