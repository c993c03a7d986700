#pragma once
/// \file
/// The store through which the launchers of a job and its ranks meet.

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

/// How often who waits for other nodes looks again.
constexpr std::chrono::milliseconds kPoll{100};
/// How long an answer of the store may take that nobody waits for.
constexpr std::chrono::milliseconds kQuickAnswer{20};

/// Waits for kPoll. Throws Exit if a signal asks for the end, and says that `whom` was waited for.
void pause(SignalQueue& signals, const char* whom = "other nodes");

/// The launcher of node 0, and with it the store, is gone or does not answer.
class HostIsLost : public Exit {
 public:
  explicit HostIsLost(const std::string& message) : Exit(kFailure, message) {}
};

/// What `future` has within `limit`, if no signal asks for the end before; else throws HostIsLost with `reproach`.
template <class T>
T wait_for(std::future<T> future, std::chrono::milliseconds limit, const std::string& reproach, SignalQueue& signals,
           const char* whom = "other nodes") {
  for (Patience patience(limit); future.wait_for(kQuickAnswer) != std::future_status::ready;) {
    pause(signals, whom);
    if (patience.is_over()) throw HostIsLost(reproach);
  }
  return future.get();
}

/// What `act` returns, which may take long in a driver or a name server, unless a signal asks for the end before. `act`
/// must own what it uses. `whom`: what is waited for.
template <class Act>
auto hear_signals_during(Act act, SignalQueue& signals, const char* whom) {
  constexpr std::chrono::hours kForEver{24 * 365};
  StoreThread thread;
  return wait_for(thread.post(std::move(act)), kForEver, "", signals, whom);
}

/// The launcher of node 0 hosts the store, so the job ends with it; the others connect to it. All have made sure that
/// they belong to one run, and have a number each that nobody else has.
class MeetingPoint {
 public:
  /// Throws Exit if the port is occupied, the store cannot be opened, nobody answers there, or two nodes have the same
  /// number.
  MeetingPoint(const Flags& flags, SignalQueue& signals);

  bool is_host() const { return id_ == 0; }
  /// This launcher's number for as long as the job lasts.
  int id() const { return id_; }
  const std::string& host() const { return host_; }
  uint16_t port() const { return port_; }
  /// How long a launcher may be silent.
  std::chrono::seconds timeout() const { return timeout_; }

  /// Asks or tells the store, and does not wait for it. `ask` must own what it uses.
  template <class Ask>
  auto post(Ask ask) {
    return store_thread_.post([store = store_, ask = std::move(ask)] { return ask(*store); });
  }
  /// Waits for the store's answer, for as long as its host may be silent and no signal asks for the end. Throws Exit.
  template <class Ask>
  auto answer(SignalQueue& signals, Ask ask) {
    return or_exit([&] { return wait_for(post(std::move(ask)), timeout_, silence_of_host(), signals); });
  }
  /// Returns what the counter is then.
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

/// What is under `key`; nullopt: nothing yet.
std::optional<std::string> read(c10d::Store& store, const std::string& key);
std::vector<uint8_t> bytes(const std::string& text);

/// What is said when the store is gone: there is no going on without it.
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
