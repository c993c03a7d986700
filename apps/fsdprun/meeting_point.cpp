#include "meeting_point.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <system_error>
#include <utility>

#include "attendance.h"
#include "comm/core/check.h"
#include "comm/rendezvous/environment.h"
#include "launch/child.h"

namespace fsdprun {
namespace {

using Clock = std::chrono::steady_clock;

std::string text(const std::vector<uint8_t>& value) { return {value.begin(), value.end()}; }

/// Opens the store. It must not run in a thread that handles signals, because LibTorch tries for minutes to connect to
/// a store that cannot be reached.
c10::intrusive_ptr<c10d::Store> host_store(const std::string& host, fsdp::StoreListener listener) {
  if (const int error = fsdp::try_to_connect(host, listener.port))
    throw std::system_error(error, std::generic_category());
  c10d::TCPStoreOptions options;
  options.port = listener.port;
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = listener.socket.release();
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

}  // namespace

const char* const kStoreIsGone =
    "the connection to node 0 broke: its launcher, which hosts the rendezvous store, has ended, so the job ends";

std::vector<uint8_t> bytes(const std::string& text) { return {text.begin(), text.end()}; }

std::optional<std::string> read(c10d::Store& store, const std::string& key) {
  if (!store.check({key})) return std::nullopt;
  return text(store.get(key));
}

void pause(SignalQueue& signals, const char* whom) {
  if (const auto number = signals.wait_for_end(kPoll)) {
    throw Exit(kSignalBase + *number, "ended by " + fsdp::signal_name(*number) + " while waiting for " + whom);
  }
}

MeetingPoint::MeetingPoint(const Flags& flags, SignalQueue& signals)
    : run_id_(flags.run_id),
      host_(flags.meeting_place.host),
      port_(flags.meeting_place.port),
      timeout_(flags.heartbeat_timeout) {
  or_exit([&] {
    const bool is_host = listen(flags, signals);
    if (!is_host) connect(flags.join_timeout, signals);
    if (is_host) tell(fsdp::kRunKey, run_id_, signals);
    require_same_run(signals);
    id_ = choose_id(is_host, flags, signals);
  });
}

bool MeetingPoint::listen(const Flags& flags, SignalQueue& signals) {
  const bool by_arrival = flags.meeting_place.numbers_nodes_by_arrival;
  if (!by_arrival && flags.node_rank != 0) return false;
  const auto try_to_listen = [host = host_, port = port_] { return fsdp::listen_for_store(host, port); };
  const std::string unknown = "the name server did not answer for the host '" + host_ + "' within " +
                              std::to_string(flags.join_timeout.count()) +
                              " s: give the address of the host as a number, or check /etc/resolv.conf";
  fsdp::StoreListener listener =
      wait_for(store_thread_.post(try_to_listen), flags.join_timeout, unknown, signals, "the address of node 0");
  if (listener.result != fsdp::StoreListener::Result::kListens) {
    refuse_to_host_unless(by_arrival, listener);
    return false;
  }
  port_ = listener.port;
  open_store(std::move(listener), signals);
  return true;
}

/// Opens the store that this launcher hosts.
void MeetingPoint::open_store(fsdp::StoreListener listener, SignalQueue& signals) {
  auto open = [host = host_, listener = std::move(listener)]() mutable {
    return host_store(host, std::move(listener));
  };
  std::string problem = "no answer within " + std::to_string(timeout_.count()) + " s";
  bool is_of_network = false;
  try {
    store_ = wait_for(store_thread_.post(std::move(open)), timeout_, problem, signals, "the store of this launcher");
    return;
  } catch (const HostIsLost&) {
  } catch (const std::system_error& error) {
    problem = error.code().message();
    is_of_network =
        error.code() != std::errc::too_many_files_open && error.code() != std::errc::too_many_files_open_in_system;
  } catch (const c10::Error& error) {
    problem = fsdp::first_line(error.what_without_backtrace());
  }
  throw Exit(kFailure, "the rendezvous store cannot be reached at " + address() + " from this host itself: " + problem +
                           (is_of_network ? ". Is the network interface with this address up? For the loopback "
                                            "interface, run `ip link set lo up`"
                                          : ". Is the limit on open files (ulimit -n) high enough?"));
}

std::string MeetingPoint::silence_of_host() const { return silent(0, timeout_); }

void MeetingPoint::require_same_run(SignalQueue& signals) {
  const std::string theirs = text(answer(signals, [](c10d::Store& store) { return store.get(fsdp::kRunKey); }));
  if (theirs == run_id_) return;
  throw Exit(kFailure, "at " + address() + " the nodes of run '" + theirs + "' meet, but this node belongs to run '" +
                           run_id_ + "': give this run a different port, or all nodes the same --rdzv-id");
}

/// Throws Exit if this launcher must be node 0 and cannot listen. If `may_connect`, another launcher may be node 0, so
/// an occupied port or an address of another host is not an error.
void MeetingPoint::refuse_to_host_unless(bool may_connect, const fsdp::StoreListener& listener) const {
  using Result = fsdp::StoreListener::Result;
  const std::string port = "port " + std::to_string(port_);
  switch (listener.result) {
    case Result::kListens:
      return;
    case Result::kUnknownHost:
      throw Exit(kFailure, "the host '" + host_ + "' cannot be found: " + listener.problem);
    case Result::kRefused:
      throw Exit(kFailure, port + " cannot be used: " + listener.problem +
                               "; choose a different port with --master-port, or in --rdzv-endpoint");
    case Result::kOccupied:
      if (may_connect) return;
      throw Exit(kFailure, port +
                               " of this host is occupied by another program: choose a different port with "
                               "--master-port, or in --rdzv-endpoint; --standalone chooses a free port");
    case Result::kNotHere:
      if (may_connect) return;
      throw Exit(kFailure, "node 0 must run on the host '" + host_ +
                               "', but this is not an address of this host: start node 0 on that host, and give every "
                               "other node its --node-rank");
  }
}

/// Connects to the store of node 0. Node 0 may start later, so this waits for up to `patience` until a program listens.
/// That program must then answer within the timeout of a launcher.
void MeetingPoint::connect(std::chrono::seconds patience, SignalQueue& signals) {
  const std::string absent = "node 0 did not answer at " + address() + " within " + std::to_string(patience.count()) +
                             " s: is its launcher running, and is the address right?";
  const auto give_up = Clock::now() + patience;
  const auto look = [host = host_, port = port_] { return fsdp::try_to_connect(host, port); };
  while (wait_for(store_thread_.post(look), patience, absent, signals) != 0) {
    pause(signals);
    if (Clock::now() > give_up) throw HostIsLost(absent);
  }
  c10d::TCPStoreOptions options;
  options.port = port_;
  options.waitWorkers = false;
  options.timeout = patience;
  const auto open = [host = host_, options]() -> c10::intrusive_ptr<c10d::Store> {
    return c10::make_intrusive<c10d::TCPStore>(host, options);
  };
  store_ = wait_for(store_thread_.post(open), timeout_,
                    "the program that listens at " + address() + " has not answered for " +
                        std::to_string(timeout_.count()) +
                        " s: if that program is node 0's launcher and it is stopped, let it continue; if it is a "
                        "different program, give all nodes a different port",
                    signals);
}

int MeetingPoint::choose_id(bool is_host, const Flags& flags, SignalQueue& signals) {
  if (flags.meeting_place.numbers_nodes_by_arrival) {
    return is_host ? 0 : static_cast<int>(count_in(key("arrivals"), 1, signals));
  }
  if (count_in(key("claims", flags.node_rank), 1, signals) > 1) {
    throw Exit(kFailure,
               "two nodes have --node-rank " + std::to_string(flags.node_rank) + ": give each node a different number");
  }
  return flags.node_rank;
}

int64_t MeetingPoint::count_in(const std::string& counter, int increment, SignalQueue& signals) {
  return answer(signals, [counter, increment](c10d::Store& store) { return store.add(counter, increment); });
}

void MeetingPoint::tell(const std::string& name, const std::string& value, SignalQueue& signals) {
  answer(signals, [name, value = bytes(value)](c10d::Store& store) {
    store.set(name, value);
    return true;
  });
}

}  // namespace fsdprun
