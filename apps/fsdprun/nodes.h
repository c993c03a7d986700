#pragma once
/// \file
/// The launchers of all nodes of a job, and the store through which they and the ranks meet.

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <optional>
#include <string>
#include <vector>

#include "comm/store_listener.h"
#include "flags.h"
#include "signals.h"

namespace fsdprun {

/// This launcher's place among those of the job. Launchers tell each other when ranks fail and when
/// all are done; with one node there is nobody to tell. A lost store is a failure of node 0.
class Nodes {
 public:
  /// Hosts the store or connects to it, and waits until every node is there. Throws Exit if a node
  /// does not come, if the port is occupied, or if two nodes have the same number.
  Nodes(const Flags& flags, int local_ranks, SignalQueue& signals);

  int node() const { return node_; }
  int count() const { return static_cast<int>(local_ranks_.size()); }
  int local_ranks() const { return local_ranks_[static_cast<size_t>(node_)]; }
  /// Ranks of the nodes before this one.
  int first_rank() const;
  int world_size() const;
  /// Where the ranks meet too.
  const std::string& host() const { return host_; }
  uint16_t port() const { return port_; }

  /// Tells the others that ranks failed here.
  void tell_failure(int attempt, const std::string& what);
  /// What another node told of a failure in this attempt; costs a message to the store.
  std::optional<std::string> failure_elsewhere(int attempt);
  /// Waits until the ranks of every node are done. Returns what another node told if ranks failed
  /// there after all, so that this attempt is void.
  std::optional<std::string> wait_until_all_are_done(int attempt, SignalQueue& signals);
  /// Waits until every node has ended its ranks of a failed attempt. Those of the next one meet at the same address;
  /// they keep their keys apart by the attempt's number.
  void prepare_restart(int failed_attempt, SignalQueue& signals);
  /// Node 0 waits a moment for the others to read their last messages: the store ends with it.
  void leave();

 private:
  void connect(SignalQueue& signals);
  void refuse_to_host_unless(bool may_connect, const fsdp::StoreListener& listener) const;
  int choose_number(bool is_host, const Flags& flags);
  void publish(int local_ranks);
  void wait_for_all(int count, SignalQueue& signals);
  void wait_until_all_have_ended(int attempt, SignalQueue& signals);
  std::string key(const std::string& name) const { return "fsdprun/" + run_id_ + "/" + name; }
  std::string key(const std::string& name, int number) const { return key(name + "/" + std::to_string(number)); }
  /// Counts this node in; true when every node has been.
  bool all_counted(const std::string& counter, int increment);

  std::string run_id_;
  std::string host_;
  uint16_t port_ = 0;
  int node_ = 0;
  std::vector<int> local_ranks_;
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

}  // namespace fsdprun
