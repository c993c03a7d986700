#include "nodes.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <cstdlib>
#include <numeric>
#include <utility>

#include <fsdp/error.h>

#include "comm/core/message_code.h"
#include "comm/rendezvous/run_identity.h"
#include "comm/rendezvous/signed_store.h"
#include "comm/rendezvous/store_listener.h"
#include "exit.h"
#include "launch/child.h"

namespace fsdprun {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kPoll{100};
constexpr milliseconds kQuickAnswer{20};
constexpr std::chrono::minutes kJoinTimeout{10};
constexpr std::chrono::seconds kLeaveTimeout{30};
// What node 0 says before anything else: of which run it is, and something that the token proves.
constexpr const char* kNodesRunKey = "fsdprun/run";
constexpr const char* kTokenKey = "fsdprun/token";

std::vector<uint8_t> bytes(const std::string& text) { return {text.begin(), text.end()}; }
std::string text(const std::vector<uint8_t>& value) { return {value.begin(), value.end()}; }

std::optional<std::string> read(c10d::Store& store, const std::string& key) {
  if (!store.check({key})) return std::nullopt;
  return text(store.get(key));
}

void pause(SignalQueue& signals) {
  if (const auto number = signals.wait_for_end(kPoll)) {
    throw Exit(kSignalBase + *number, fsdp::signal_name(*number) + " while waiting for other nodes");
  }
}

/// What `future` has within `limit`, if no signal asks for the end before; else throws Exit with `reproach`.
template <class T>
T wait_for(std::future<T> future, std::chrono::milliseconds limit, const std::string& reproach, SignalQueue& signals) {
  for (Patience patience(limit); future.wait_for(kQuickAnswer) != std::future_status::ready;) {
    pause(signals);
    if (patience.is_over()) throw Exit(kFailure, reproach);
  }
  return future.get();
}

c10::intrusive_ptr<c10d::Store> host_store(const std::string& host, fsdp::StoreListener listener) {
  c10d::TCPStoreOptions options;
  options.port = listener.port;
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = listener.socket.release();
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

std::string silent(int node, std::chrono::seconds timeout) {
  return "node " + std::to_string(node) + ": its launcher has been silent for " + std::to_string(timeout.count()) +
         " s, it is stopped or cannot be reached";
}

std::string token_of_environment() {
  const char* token = std::getenv("FSDP_JOB_TOKEN");
  return token == nullptr ? "" : token;
}

[[noreturn]] void refuse_to_go_on_alone() {
  throw Exit(kFailure, "the connection to node 0 broke: its launcher has ended");
}

}  // namespace

Nodes::Nodes(const Flags& flags, int local_ranks, SignalQueue& signals)
    : run_id_(flags.run_id),
      host_(flags.meeting_place.host),
      port_(flags.meeting_place.port),
      timeout_(flags.heartbeat_timeout),
      token_(token_of_environment()),
      silence_of_store_(timeout_) {
  const bool by_arrival = flags.meeting_place.numbers_nodes_by_arrival;
  bool is_host = false;
  if (by_arrival || flags.node_rank == 0) {
    fsdp::StoreListener listener = fsdp::listen_for_store(host_, port_);
    is_host = listener.result == fsdp::StoreListener::Result::kListens;
    if (is_host) {
      port_ = listener.port;
      store_ = host_store(host_, std::move(listener));
      tell_run();
    } else {
      refuse_to_host_unless(by_arrival, listener);
    }
  }
  local_ranks_.assign(static_cast<size_t>(flags.nodes), local_ranks);
  silence_of_.assign(static_cast<size_t>(flags.nodes), Patience(timeout_));
  beats_.assign(static_cast<size_t>(flags.nodes), 0);
  try {
    if (!is_host) connect(signals);
    shared_ = shared_store();
    require_same_run(signals);
    node_ = choose_number(is_host, flags, signals);
    agree_on_token(signals);
    if (flags.nodes == 1) return;
    publish(local_ranks, signals);
    wait_for_all(signals);
  } catch (const fsdp::Error& error) {
    throw Exit(kFailure, error.what_without_backtrace());
  } catch (const c10::Error&) {
    refuse_to_go_on_alone();
  }
}

/// What is in it counts with a proof of the token that the environment has.
c10::intrusive_ptr<c10d::Store> Nodes::shared_store() const {
  if (token_.empty()) return store_;
  return fsdp::make_signed_store(store_, token_);
}

template <class Ask>
auto Nodes::post(Ask ask) {
  return store_thread_.post([store = shared_, ask = std::move(ask)] { return ask(*store); });
}

/// Waits for the store's answer, for as long as its host may be silent and no signal asks for the end.
template <class Ask>
auto Nodes::answer(SignalQueue& signals, Ask ask) {
  return wait_for(post(std::move(ask)), timeout_, silent(0, timeout_), signals);
}

void Nodes::tell_run() {
  const auto tell = [](c10d::Store& store, const std::string& name, const std::string& value) {
    store.set(name, bytes(value));
  };
  tell(*store_, fsdp::kRunKey, fsdp::run_identity(run_id_, /*has_token=*/true));
  tell(*shared_store(), kTokenKey, "known");
  tell(*store_, kNodesRunKey, fsdp::run_identity(run_id_, !token_.empty()));
}

void Nodes::require_same_run(SignalQueue& signals) {
  const std::string own = fsdp::run_identity(run_id_, !token_.empty());
  const std::string theirs =
      text(answer(signals, [unsigned_store = store_](c10d::Store&) { return unsigned_store->get(kNodesRunKey); }));
  if (theirs != own) {
    throw Exit(kFailure, "at " + address() + " the nodes of " + theirs + " meet, and this one is of " + own +
                             ": give it another port, or the same --rdzv-id and FSDP_JOB_TOKEN");
  }
  // Throws if their token is another.
  answer(signals, [](c10d::Store& store) { return store.get(kTokenKey); });
}

/// A node that may be another than node 0 can do without the port.
void Nodes::refuse_to_host_unless(bool may_connect, const fsdp::StoreListener& listener) const {
  using Result = fsdp::StoreListener::Result;
  const std::string port = "port " + std::to_string(port_);
  switch (listener.result) {
    case Result::kListens:
      return;
    case Result::kUnknownHost:
      throw Exit(kFailure, "the host '" + host_ + "' cannot be found: " + listener.problem);
    case Result::kRefused:
      throw Exit(kFailure, port + " cannot be used: " + listener.problem);
    case Result::kOccupied:
      if (may_connect) return;
      throw Exit(kFailure, port +
                               " of this host is occupied by another program: choose another with "
                               "--master-port, or let --standalone choose a free one");
    case Result::kNotHere:
      if (may_connect) return;
      throw Exit(kFailure, "'" + host_ +
                               "' is not an address of this host, but node 0 must run there: start "
                               "it there, or number the nodes with --node-rank");
  }
}

/// Node 0 may still have to start; whoever listens has to answer as soon as a launcher does.
void Nodes::connect(SignalQueue& signals) {
  const std::string absent = "node 0 did not answer at " + address() +
                             " within 10 minutes: is its launcher running, and is --master-addr right?";
  const auto give_up = Clock::now() + kJoinTimeout;
  const auto look = [host = host_, port = port_] { return fsdp::somebody_listens(host, port); };
  while (!wait_for(store_thread_.post(look), kJoinTimeout, absent, signals)) {
    pause(signals);
    if (Clock::now() > give_up) throw Exit(kFailure, absent);
  }
  c10d::TCPStoreOptions options;
  options.port = port_;
  options.waitWorkers = false;
  options.timeout = kJoinTimeout;
  const auto open = [host = host_, options]() -> c10::intrusive_ptr<c10d::Store> {
    return c10::make_intrusive<c10d::TCPStore>(host, options);
  };
  store_ = wait_for(store_thread_.post(open), timeout_,
                    "whoever listens at " + address() + " has not answered for " + std::to_string(timeout_.count()) +
                        " s: let node 0's launcher go on if it is stopped there; if that is another program, "
                        "give all nodes another port",
                    signals);
}

/// One that the environment has is everybody's. Else node 0 makes one, which the others read in the store.
void Nodes::agree_on_token(SignalQueue& signals) {
  if (!token_.empty()) return;
  if (node_ == 0) token_ = fsdp::random_token();
  if (count() == 1) return;
  if (node_ == 0) {
    answer(signals, [name = key("token"), value = bytes(token_)](c10d::Store& store) {
      store.set(name, value);
      return true;
    });
    return;
  }
  token_ = word_of(0, key("token"), Clock::now() + kJoinTimeout, signals);
}

int Nodes::choose_number(bool is_host, const Flags& flags, SignalQueue& signals) {
  if (!flags.meeting_place.numbers_nodes_by_arrival) return flags.node_rank;
  const auto number = is_host ? 0 : static_cast<int>(count_in(key("arrivals"), 1, signals));
  if (number >= flags.nodes) {
    throw Exit(kFailure, "the job '" + run_id_ + "' at " + address() + " has its " + std::to_string(flags.nodes) +
                             " nodes already: give this one another --rdzv-id and port");
  }
  return number;
}

void Nodes::publish(int local_ranks, SignalQueue& signals) {
  if (count_in(key("claims", node_), 1, signals) > 1) {
    throw Exit(kFailure, "two nodes have --node-rank " + std::to_string(node_) + ": each needs a number of its own");
  }
  answer(signals, [name = key("ranks", node_), value = bytes(std::to_string(local_ranks))](c10d::Store& store) {
    store.set(name, value);
    return true;
  });
}

void Nodes::wait_for_all(SignalQueue& signals) {
  const auto give_up = Clock::now() + kJoinTimeout;
  for (int node = 0; node < count(); ++node)
    local_ranks_[static_cast<size_t>(node)] = std::stoi(word_of(node, key("ranks", node), give_up, signals));
}

std::string Nodes::word_of(int node, const std::string& name, Clock::time_point give_up, SignalQueue& signals) {
  for (;; pause(signals)) {
    const auto found = answer(signals, [name](c10d::Store& store) { return read(store, name); });
    if (found) return *found;
    if (Clock::now() > give_up) {
      throw Exit(kFailure,
                 "node " + std::to_string(node) + " of " + std::to_string(count()) + " did not join within 10 minutes");
    }
  }
}

int64_t Nodes::count_in(const std::string& counter, int increment, SignalQueue& signals) {
  return answer(signals, [counter, increment](c10d::Store& store) { return store.add(counter, increment); });
}

int Nodes::first_rank() const { return std::accumulate(local_ranks_.begin(), local_ranks_.begin() + node_, 0); }

int Nodes::world_size() const { return std::accumulate(local_ranks_.begin(), local_ranks_.end(), 0); }

void Nodes::tell_failure(int attempt, const std::string& what) {
  if (count() == 1) return;
  // The first one stays. Without node 0 the others end by themselves.
  post([name = key("failure", attempt), value = bytes(what)](c10d::Store& store) {
    store.compareSet(name, {}, value);
    return true;
  });
}

void Nodes::tell_own_failure(int attempt, const std::string& what) {
  tell_failure(attempt, "node " + std::to_string(node_) + ": " + what);
}

/// A heartbeat of this node's, and in node 0 a look at the others'.
std::future<Nodes::News> Nodes::look(int attempt) {
  std::vector<std::string> beats;
  for (int node = 0; node < (node_ == 0 ? count() : 0); ++node) beats.push_back(key("beat", node));
  return post(
      [attempt, own = key("beat", node_), failure = key("failure", attempt), beats](c10d::Store& store) -> News {
        store.add(own, 1);
        News news{.attempt = attempt};
        for (const auto& name : beats) news.beats.push_back(store.add(name, 0));
        news.failure = read(store, failure);
        return news;
      });
}

std::optional<std::string> Nodes::failure_elsewhere(int attempt) {
  if (count() == 1) return std::nullopt;
  try {
    if (!look_.valid()) look_ = look(attempt);
    if (look_.wait_for(kQuickAnswer) != std::future_status::ready) {
      return silence_of_store_.is_over() ? std::optional(silent(0, timeout_)) : std::nullopt;
    }
    silence_of_store_.begin_anew();
    const News news = look_.get();
    if (news.failure && news.attempt == attempt) return news.failure;
    const auto lost = silent_node(news.beats);
    if (lost) tell_failure(attempt, *lost);
    return lost;
  } catch (const c10::Error&) {
    return "node 0: the connection broke, its launcher has ended";
  }
}

std::optional<std::string> Nodes::silent_node(const std::vector<int64_t>& beats) {
  std::optional<std::string> lost;
  silent_nodes_ = 0;
  for (size_t node = 0; node < beats.size(); ++node) {
    if (std::exchange(beats_[node], beats[node]) != beats[node]) silence_of_[node].begin_anew();
    if (!silence_of_[node].is_over()) continue;
    if (silent_nodes_++ == 0) lost = silent(static_cast<int>(node), timeout_);
  }
  return lost;
}

std::optional<std::string> Nodes::wait_until_all_are_done(int attempt, SignalQueue& signals) {
  if (count() == 1) return std::nullopt;
  try {
    for (int increment = 1; count_in(key("done", attempt), increment, signals) < count(); increment = 0) {
      if (const auto failure = failure_elsewhere(attempt)) return failure;
      pause(signals);
    }
    return std::nullopt;
  } catch (const c10::Error&) {
    refuse_to_go_on_alone();
  }
}

void Nodes::wait_until_all_have_ended(int attempt, SignalQueue& signals) {
  // Failures of this attempt are known; that of the next one is a node that falls silent meanwhile.
  for (int increment = 1; count_in(key("ended", attempt), increment, signals) < count(); increment = 0) {
    if (const auto failure = failure_elsewhere(attempt + 1)) throw Exit(kFailure, *failure);
    pause(signals);
  }
}

void Nodes::prepare_restart(int failed_attempt, SignalQueue& signals) {
  try {
    if (count() > 1) wait_until_all_have_ended(failed_attempt, signals);
  } catch (const c10::Error&) {
    refuse_to_go_on_alone();
  }
}

void Nodes::leave(SignalQueue& signals) {
  if (count() == 1) return;
  if (node_ != 0) {
    post([counter = key("left")](c10d::Store& store) { return store.add(counter, 1); });
    return;
  }
  try {
    const auto give_up = Clock::now() + kLeaveTimeout;
    for (int increment = 1; count_in(key("left"), increment, signals) < count() - silent_nodes_; increment = 0) {
      if (Clock::now() > give_up) return;
      pause(signals);
    }
  } catch (const std::exception&) {
    // Everything is over; nobody misses the store, and who asks for the end need not wait for the others.
  }
}

}  // namespace fsdprun
