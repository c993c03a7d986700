#include "nodes.h"

#include <chrono>
#include <numeric>
#include <thread>

#include "comm/store_listener.h"
#include "exit.h"

namespace fsdprun {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kPoll{100};
constexpr std::chrono::minutes kJoinTimeout{10};
constexpr std::chrono::seconds kLeaveTimeout{30};

std::vector<uint8_t> bytes(const std::string& text) { return {text.begin(), text.end()}; }
std::string text(const std::vector<uint8_t>& value) { return {value.begin(), value.end()}; }

void pause(SignalQueue& signals) {
  if (const auto number = signals.wait_for_end(kPoll)) {
    throw Exit(kSignalBase + *number, signal_name(*number) + " while waiting for other nodes");
  }
}

c10::intrusive_ptr<c10d::TCPStore> host_store(const std::string& host, fsdp::StoreListener listener) {
  c10d::TCPStoreOptions options;
  options.port = listener.port;
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = listener.socket.release();
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

[[noreturn]] void refuse_to_go_on_alone() {
  throw Exit(kFailure, "the connection to node 0 broke: its launcher has ended");
}

}  // namespace

Nodes::Nodes(const Flags& flags, int local_ranks, SignalQueue& signals)
    : run_id_(flags.run_id), host_(flags.meeting_place.host), port_(flags.meeting_place.port) {
  const bool by_arrival = flags.meeting_place.numbers_nodes_by_arrival;
  bool is_host = false;
  if (by_arrival || flags.node_rank == 0) {
    fsdp::StoreListener listener = fsdp::listen_for_store(host_, port_);
    is_host = listener.result == fsdp::StoreListener::Result::kListens;
    if (is_host) {
      port_ = listener.port;
      store_ = host_store(host_, std::move(listener));
    } else {
      refuse_to_host_unless(by_arrival, listener);
    }
  }
  if (!is_host) connect(signals);
  node_ = choose_number(is_host, flags);
  local_ranks_.assign(static_cast<size_t>(flags.nodes), local_ranks);
  if (flags.nodes == 1) return;
  try {
    publish(local_ranks);
    wait_for_all(flags.nodes, signals);
  } catch (const c10::Error&) {
    refuse_to_go_on_alone();
  }
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

void Nodes::connect(SignalQueue& signals) {
  c10d::TCPStoreOptions options;
  options.port = port_;
  options.waitWorkers = false;
  options.timeout = kJoinTimeout;
  try {
    signals.while_interruptible([&] { store_ = c10::make_intrusive<c10d::TCPStore>(host_, options); });
  } catch (const c10::Error&) {
    throw Exit(kFailure, "node 0 did not answer at " + host_ + ":" + std::to_string(port_) +
                             " within 10 minutes: is its launcher running, and is --master-addr "
                             "right?");
  }
}

int Nodes::choose_number(bool is_host, const Flags& flags) {
  if (!flags.meeting_place.numbers_nodes_by_arrival) return flags.node_rank;
  const auto number = is_host ? 0 : static_cast<int>(store_->add(key("arrivals"), 1));
  if (number >= flags.nodes) {
    throw Exit(kFailure, "the job '" + run_id_ + "' at " + host_ + ":" + std::to_string(port_) + " has its " +
                             std::to_string(flags.nodes) + " nodes already: give this one another --rdzv-id and port");
  }
  return number;
}

void Nodes::publish(int local_ranks) {
  if (store_->add(key("claims", node_), 1) > 1) {
    throw Exit(kFailure, "two nodes have --node-rank " + std::to_string(node_) + ": each needs a number of its own");
  }
  store_->set(key("ranks", node_), bytes(std::to_string(local_ranks)));
}

void Nodes::wait_for_all(int count, SignalQueue& signals) {
  const auto give_up = Clock::now() + kJoinTimeout;
  for (int node = 0; node < count; ++node) {
    while (!store_->check({key("ranks", node)})) {
      if (Clock::now() > give_up) {
        throw Exit(kFailure,
                   "node " + std::to_string(node) + " of " + std::to_string(count) + " did not join within 10 minutes");
      }
      pause(signals);
    }
    local_ranks_[static_cast<size_t>(node)] = std::stoi(text(store_->get(key("ranks", node))));
  }
}

int Nodes::first_rank() const { return std::accumulate(local_ranks_.begin(), local_ranks_.begin() + node_, 0); }

int Nodes::world_size() const { return std::accumulate(local_ranks_.begin(), local_ranks_.end(), 0); }

void Nodes::tell_failure(int attempt, const std::string& what) {
  if (count() == 1) return;
  try {
    // The first one stays.
    store_->compareSet(key("failure", attempt), {}, bytes("node " + std::to_string(node_) + ": " + what));
  } catch (const c10::Error&) {
    // Without node 0 the others end by themselves.
  }
}

std::optional<std::string> Nodes::failure_elsewhere(int attempt) {
  if (count() == 1) return std::nullopt;
  try {
    if (!store_->check({key("failure", attempt)})) return std::nullopt;
    return text(store_->get(key("failure", attempt)));
  } catch (const c10::Error&) {
    return "node 0: the connection broke, its launcher has ended";
  }
}

bool Nodes::all_counted(const std::string& counter, int increment) {
  return store_->add(counter, increment) >= count();
}

std::optional<std::string> Nodes::wait_until_all_are_done(int attempt, SignalQueue& signals) {
  if (count() == 1) return std::nullopt;
  try {
    for (int increment = 1; !all_counted(key("done", attempt), increment); increment = 0) {
      if (const auto failure = failure_elsewhere(attempt)) return failure;
      pause(signals);
    }
    return std::nullopt;
  } catch (const c10::Error&) {
    refuse_to_go_on_alone();
  }
}

void Nodes::wait_until_all_have_ended(int attempt, SignalQueue& signals) {
  for (int increment = 1; !all_counted(key("ended", attempt), increment); increment = 0) {
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

void Nodes::leave() {
  if (count() == 1) return;
  try {
    const auto give_up = Clock::now() + kLeaveTimeout;
    for (int increment = 1; !all_counted(key("left"), increment); increment = 0) {
      if (node_ != 0 || Clock::now() > give_up) return;
      std::this_thread::sleep_for(kPoll);
    }
  } catch (const c10::Error&) {
    // Everything is over; nobody misses the store.
  }
}

}  // namespace fsdprun
