#pragma once
/// \file
/// Counting what a rank exchanges with others.

#include <fsdp/traffic.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

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

/// Of a rank: all its communicators count here.
struct TrafficCount {
  LinkCount between_hosts, inside_host;
  Traffic total() const { return {between_hosts.total(), inside_host.total()}; }
};

/// Which of the counts is that of a peer.
class CountByPeer {
 public:
  /// `hosts`: by rank, the number of its host.
  CountByPeer(std::shared_ptr<TrafficCount> traffic, std::vector<int> hosts, int rank)
      : traffic_(std::move(traffic)), hosts_(std::move(hosts)), own_host_(hosts_[static_cast<size_t>(rank)]) {}
  LinkCount& with(int peer) const {
    return hosts_[static_cast<size_t>(peer)] == own_host_ ? traffic_->inside_host : traffic_->between_hosts;
  }

 private:
  const std::shared_ptr<TrafficCount> traffic_;
  const std::vector<int> hosts_;
  const int own_host_;
};

}  // namespace fsdp
