#pragma once
/// \file
/// The launchers of all nodes of a job, and the store through which they and the ranks meet.

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "comm/rendezvous/store_listener.h"
#include "flags.h"
#include "patience.h"
#include "signals.h"
#include "store_thread.h"

namespace fsdprun {

/// This launcher's place among those of the job. Launchers tell each other when ranks fail and when
/// all are done; with one node there is nobody to tell. A lost store is a failure of node 0; so is its silence, and
/// node 0 sees to the silence of the others, which show that they are there whenever they look.
class Nodes {
 public:
  /// Hosts the store or connects to it, and waits until every node is there. Throws Exit if a node
  /// does not come, if the port is occupied, or if two nodes have the same number.
  Nodes(const Flags& flags, int local_ranks, SignalQueue& signals);

  /// The secret that the ranks share.
  const std::string& token() const { return token_; }
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
  void tell_own_failure(int attempt, const std::string& what);
  /// What another node told of a failure in this attempt, or who has fallen silent. Call every second or so: it also
  /// tells the others that this node is there. Waits for the store for a few milliseconds at most.
  std::optional<std::string> failure_elsewhere(int attempt);
  /// Waits until the ranks of every node are done. Returns what another node told if ranks failed
  /// there after all, so that this attempt is void.
  std::optional<std::string> wait_until_all_are_done(int attempt, SignalQueue& signals);
  /// Waits until every node has ended its ranks of a failed attempt. Those of the next one meet at the same address;
  /// they keep their keys apart by the attempt's number.
  void prepare_restart(int failed_attempt, SignalQueue& signals);
  /// Node 0 waits a moment for those of the others that are there to read their last messages: the store ends with it.
  /// The others do not wait.
  void leave(SignalQueue& signals);

 private:
  /// What the store knows that this node has to know all the time.
  struct News {
    int attempt;
    std::optional<std::string> failure = std::nullopt;
    /// How often each node has looked; only for node 0.
    std::vector<int64_t> beats = {};
  };

  void connect(SignalQueue& signals);
  void refuse_to_host_unless(bool may_connect, const fsdp::StoreListener& listener) const;
  void tell_run();
  void require_same_run(SignalQueue& signals);
  c10::intrusive_ptr<c10d::Store> shared_store() const;
  std::string address() const { return host_ + ":" + std::to_string(port_); }
  void agree_on_token(SignalQueue& signals);
  int choose_number(bool is_host, const Flags& flags, SignalQueue& signals);
  void publish(int local_ranks, SignalQueue& signals);
  void wait_for_all(SignalQueue& signals);
  void wait_until_all_have_ended(int attempt, SignalQueue& signals);
  void tell_failure(int attempt, const std::string& what);
  std::future<News> look(int attempt);
  std::optional<std::string> silent_node(const std::vector<int64_t>& beats);
  template <class Ask>
  auto post(Ask ask);
  template <class Ask>
  auto answer(SignalQueue& signals, Ask ask);
  /// What `node` writes under `name` when it joins.
  std::string word_of(int node, const std::string& name, std::chrono::steady_clock::time_point give_up,
                      SignalQueue& signals);
  /// Returns what the counter is then.
  int64_t count_in(const std::string& counter, int increment, SignalQueue& signals);
  std::string key(const std::string& name) const { return "fsdprun/" + run_id_ + "/" + name; }
  std::string key(const std::string& name, int number) const { return key(name + "/" + std::to_string(number)); }

  std::string run_id_;
  std::string host_;
  uint16_t port_ = 0;
  int node_ = 0;
  std::vector<int> local_ranks_;
  std::chrono::seconds timeout_;
  std::string token_;
  // The store, and what of it counts.
  c10::intrusive_ptr<c10d::Store> store_, shared_;
  StoreThread store_thread_;
  // The look that has not been answered yet, or not been taken notice of.
  std::future<News> look_;
  Patience silence_of_store_;
  int silent_nodes_ = 0;
  // Of each node.
  std::vector<Patience> silence_of_;
  std::vector<int64_t> beats_;
};

}  // namespace fsdprun
