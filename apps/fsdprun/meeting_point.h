#pragma once
/// \file
/// The store through which the launchers and the ranks of a job meet.

#include <fsdp/error.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "comm/rendezvous/network.h"
#include "exit.h"
#include "flags.h"
#include "patience.h"
#include "signals.h"
#include "store_thread.h"

namespace fsdprun {

/// Time between two looks at the store while a launcher waits for other nodes.
constexpr std::chrono::milliseconds kPoll{100};
/// Time to wait for an answer of the store if the caller can also continue without it.
constexpr std::chrono::milliseconds kQuickAnswer{20};

/// Waits for kPoll. If a signal asks the launcher to end, throws Exit, whose message says that it waited for `whom`.
void pause(SignalQueue& signals, const char* whom = "other nodes");

/// Thrown if the launcher of node 0, which hosts the store, is gone or does not answer.
class HostIsLost : public Exit {
 public:
  explicit HostIsLost(const std::string& message) : Exit(kFailure, message) {}
};

/// Waits for `future` and returns its value. Throws Exit if a signal asks the launcher to end, and HostIsLost, whose
/// message is `reproach`, after `limit`.
template <class T>
T wait_for(std::future<T> future, std::chrono::milliseconds limit, const std::string& reproach, SignalQueue& signals,
           const char* whom = "other nodes") {
  for (Patience patience(limit); future.wait_for(kQuickAnswer) != std::future_status::ready;) {
    pause(signals, whom);
    if (patience.is_over()) throw HostIsLost(reproach);
  }
  return future.get();
}

/// Runs `act` in another thread, because it may wait long for a driver or a name server, and returns its result. Throws
/// Exit if a signal asks the launcher to end. `act` must own the objects that it uses. `whom` names what the launcher
/// waits for.
template <class Act>
auto hear_signals_during(Act act, SignalQueue& signals, const char* whom) {
  constexpr std::chrono::hours kForEver{24 * 365};
  StoreThread thread;
  return wait_for(thread.post(std::move(act)), kForEver, "", signals, whom);
}

/// The connection of a launcher to the store. The launcher of node 0 hosts the store, so the job ends with that
/// launcher; other launchers connect to the store. The constructor checks that this launcher belongs to the same run as
/// the others, and gives it a number that no other launcher has.
class MeetingPoint {
 public:
  /// Throws Exit if the port is occupied, the store cannot be opened, node 0 does not answer, or two nodes have the
  /// same number.
  MeetingPoint(const Flags& flags, SignalQueue& signals);

  bool is_host() const { return id_ == 0; }
  /// This launcher's number, which stays the same until the job ends.
  int id() const { return id_; }
  const std::string& host() const { return host_; }
  uint16_t port() const { return port_; }
  /// Time for which a launcher may be silent.
  std::chrono::seconds timeout() const { return timeout_; }

  /// Runs `ask` with the store in another thread and returns a future of its result. `ask` must own the objects that it
  /// uses.
  template <class Ask>
  auto post(Ask ask) {
    return store_thread_.post([store = store_, ask = std::move(ask)] { return ask(*store); });
  }
  /// Runs `ask` with the store and waits for its result. Throws Exit if node 0 is silent for longer than `timeout()` or
  /// a signal asks the launcher to end.
  template <class Ask>
  auto answer(SignalQueue& signals, Ask ask) {
    return or_exit([&] { return wait_for(post(std::move(ask)), timeout_, silence_of_host(), signals); });
  }
  /// Adds `increment` to the counter and returns its new value.
  int64_t count_in(const std::string& counter, int increment, SignalQueue& signals);
  void tell(const std::string& name, const std::string& value, SignalQueue& signals);

  std::string key(const std::string& name) const { return "fsdprun/" + run_id_ + "/" + name; }
  std::string key(const std::string& name, int number) const { return key(name + "/" + std::to_string(number)); }

 private:
  bool listen(const Flags& flags, SignalQueue& signals);
  void open_store(fsdp::StoreListener listener, SignalQueue& signals);
  void refuse_to_host_unless(bool may_connect, const fsdp::StoreListener& listener) const;
  void connect(std::chrono::seconds patience, SignalQueue& signals);
  void require_same_run(SignalQueue& signals);
  int choose_id(bool is_host, const Flags& flags, SignalQueue& signals);
  std::string address() const { return host_ + ":" + std::to_string(port_); }
  std::string silence_of_host() const;
  template <class Act>
  static auto or_exit(Act act) -> decltype(act());

  std::string run_id_;
  std::string host_;
  uint16_t port_ = 0;
  int id_ = 0;
  std::chrono::seconds timeout_;
  c10::intrusive_ptr<c10d::Store> store_;
  StoreThread store_thread_;
};

/// Returns the value of `key`, or nullopt if it is not set yet.
std::optional<std::string> read(c10d::Store& store, const std::string& key);
std::vector<uint8_t> bytes(const std::string& text);

/// The message for a store that is gone, after which the job cannot continue.
extern const char* const kStoreIsGone;

template <class Act>
auto MeetingPoint::or_exit(Act act) -> decltype(act()) {
  try {
    return act();
  } catch (const fsdp::Error& error) {
    throw Exit(kFailure, error.what_without_backtrace());
  } catch (const c10::Error&) {
    throw HostIsLost(kStoreIsGone);
  }
}

}  // namespace fsdprun
