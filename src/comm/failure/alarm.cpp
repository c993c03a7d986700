#include <c10/util/thread_name.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>
#include <utility>

#include "comm/core/text.h"
#include "comm/failure/roll_call.h"
#include "comm/posix/of_this_process.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;

// Timeout of one wait for the key. After it the wait begins again.
constexpr std::chrono::hours kLongWait{24};
// The longest time for which a store that does not answer keeps this process from ending.
constexpr std::chrono::seconds kFarewell{3};
// Pause between a ring and the look. Meanwhile operations that other ranks have completed end here too, and a rank
// whose own timeout is about to pass raises the alarm itself instead of answering without a cause.
constexpr std::chrono::milliseconds kMoment{200};

std::string key_of(int rank) { return str_cat("alarm/", rank); }

}  // namespace

// Note [Alarm]
// A rank that has a message for other ranks (a question or a verdict) first writes it under keys of their group and
// then sets the key alarm/R of each of them. Rank R waits for that key, deletes it and then reads the messages. A
// message that is written after R has read comes with another ring. A rank ends its own wait by setting its own key.

// The alarm's state, which its thread shares because the thread may outlive the Alarm.
struct Alarm::State {
  void tell(const std::function<void(RollCall&)>& act) {
    MutexLock lock(mutex);
    const auto all = calls;
    lock.unlock();
    for (const auto& weak : all)
      if (const auto call = weak.lock()) act(*call);
  }

  void listen() {
    c10::setThreadName("fsdp-alarm");
    for (auto begin = Clock::now(); !is_stopping; begin = Clock::now()) {
      try {
        listening->wait({key_of(rank)}, kLongWait);
        if (is_stopping) break;
        listening->deleteKey(key_of(rank));
      } catch (const std::exception&) {
        // A store that is gone matters only when a collective fails: ranks may leave in any order.
        if (Clock::now() - begin < kLongWait) break;
      }
      std::this_thread::sleep_for(kMoment);
      tell([](RollCall& call) { call.look(); });
    }
    has_listened.set_value();
  }

  void ring(const std::vector<int>& ranks) const {
    std::vector<std::string> keys;
    for (const int other : ranks) keys.push_back(key_of(other));
    ringing->multiSet(keys, std::vector(keys.size(), std::vector<uint8_t>{'1'}));
  }

  // Ends the thread. May be called again. Does nothing in a forked child, which has no such thread.
  void stop() {
    if (process != getpid() || is_stopping.exchange(true)) return;
    // If the ring fails, the thread has ended or never will, because the store does not answer.
    std::chrono::milliseconds patience = kFarewell;
    try {
      ring({rank});
    } catch (const std::exception&) {
      patience = {};
    }
    const auto own = std::this_thread::get_id();
    const bool ended = ear.get_id() != own && has_listened.get_future().wait_for(patience) == std::future_status::ready;
    ended ? ear.join() : ear.detach();
  }

  const StorePtr listening, ringing;
  const int rank;
  const pid_t process = getpid();
  std::atomic<bool> is_stopping{false};
  std::promise<void> has_listened{};
  Mutex mutex{};
  std::vector<std::weak_ptr<RollCall>> calls FSDP_GUARDED_BY(mutex){};
  std::thread ear{};  // runs listen()
};

namespace {

// The alarms of this process, for leave_all().
struct Started {
  Mutex mutex;
  std::vector<std::weak_ptr<Alarm::State>> alarms FSDP_GUARDED_BY(mutex);
};

template <class T>
void keep(std::vector<std::weak_ptr<T>>& all, std::weak_ptr<T> one) {
  std::erase_if(all, [](const auto& other) { return other.expired(); });
  all.push_back(std::move(one));
}

}  // namespace

Alarm::~Alarm() {
  if (state_) state_->stop();
}

void Alarm::start(const Connect& connect, const Ranks& ranks) {
  const MutexLock lock(mutex_);
  if (state_) return;
  auto listening = connect(), ringing = connect();
  ringing->setTimeout(kFarewell);
  state_.reset(new State{std::move(listening), std::move(ringing), ranks.name()});
  state_->ear = std::thread([state = state_] { state->listen(); });
  auto& started = of_this_process<Started>();
  const MutexLock among_all(started.mutex);
  keep<State>(started.alarms, state_);
}

void Alarm::add(std::weak_ptr<RollCall> call) {
  const auto own = state();
  const MutexLock lock(own->mutex);
  keep(own->calls, std::move(call));
}

void Alarm::tell(const std::function<void(RollCall&)>& act) const { state()->tell(act); }

void Alarm::ring(const std::vector<int>& ranks) const { state()->ring(ranks); }

void Alarm::leave_all() {
  auto& started = of_this_process<Started>();
  MutexLock lock(started.mutex);
  const auto alarms = started.alarms;
  lock.unlock();
  for (const auto& weak : alarms) {
    const auto alarm = weak.lock();
    if (!alarm) continue;
    alarm->tell([](RollCall& call) { call.leave(); });
    alarm->stop();
  }
}

}  // namespace fsdp
