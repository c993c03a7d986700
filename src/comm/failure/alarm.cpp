#include <c10/util/thread_name.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <thread>
#include <utility>

#include "comm/core/check.h"
#include "comm/failure/roll_call.h"
#include "comm/posix/of_this_process.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;

// Timeout of one wait for the key. After it the wait begins again.
constexpr std::chrono::hours kLongWait{24};
// The longest time for which a store that does not answer keeps this process from ending.
constexpr std::chrono::seconds kFarewell{3};
// Pause between a ring and RollCall::look(). Meanwhile operations that other ranks have completed end here too, and a
// rank whose own timeout is about to pass raises the alarm itself instead of answering without a cause.
constexpr std::chrono::milliseconds kMoment{200};

std::string key_of(int rank) { return str_cat("alarm/", rank); }

// The alarms of this process, for leave_all().
struct Started {
  Mutex mutex;
  std::vector<std::weak_ptr<Alarm>> alarms FSDP_GUARDED_BY(mutex);
};

template <class T>
void keep(std::vector<std::weak_ptr<T>>& all, std::weak_ptr<T> one) {
  std::erase_if(all, [](const auto& other) { return other.expired(); });
  all.push_back(std::move(one));
}

}  // namespace

// Note [Alarm]
// A rank that has a message for other ranks (a question or a verdict) first writes it under keys of their group and
// then sets the key alarm/R of each of them. Rank R waits for that key, deletes it and then reads the messages. A
// message that is written after R has read comes with another ring. A rank ends its own wait by setting its own key.

std::shared_ptr<Alarm> Alarm::make() {
  const std::shared_ptr<Alarm> alarm(new Alarm);
  return {alarm.get(), [alarm](Alarm*) { alarm->stop(); }};
}

void Alarm::start(const Connect& connect, const Ranks& ranks) {
  const MutexLock lock(mutex_);
  if (listening_) return;
  auto listening = connect(), ringing = connect();
  ringing->setTimeout(kFarewell);
  listening_ = std::move(listening);
  ringing_ = std::move(ringing);
  rank_ = ranks.name();
  process_ = getpid();
  ear_ = std::thread([self = shared_from_this()] { self->listen(); });
  auto& started = of_this_process<Started>();
  const MutexLock among_all(started.mutex);
  keep(started.alarms, weak_from_this());
}

void Alarm::add(std::weak_ptr<RollCall> call) {
  const MutexLock lock(mutex_);
  keep(calls_, std::move(call));
}

void Alarm::tell(const std::function<void(RollCall&)>& act) const {
  MutexLock lock(mutex_);
  const auto all = calls_;
  lock.unlock();
  for (const auto& weak : all)
    if (const auto call = weak.lock()) act(*call);
}

void Alarm::ring(const std::vector<int>& ranks) const {
  std::vector<std::string> keys;
  for (const int other : ranks) keys.push_back(key_of(other));
  ringing_->multiSet(keys, std::vector(keys.size(), std::vector<uint8_t>{'1'}));
}

void Alarm::listen() {
  c10::setThreadName("fsdp-alarm");
  for (auto begin = Clock::now(); !is_stopping_; begin = Clock::now()) {
    try {
      listening_->wait({key_of(rank_)}, kLongWait);
      if (is_stopping_) break;
      listening_->deleteKey(key_of(rank_));
    } catch (const std::exception&) {
      // A store that is gone matters only when a collective fails: the rank that hosts it may leave before this one.
      if (Clock::now() - begin < kLongWait) break;
    }
    std::this_thread::sleep_for(kMoment);
    tell([](RollCall& call) { call.look(); });
  }
  has_listened_.set_value();
}

void Alarm::stop() {
  if (process_ != getpid() || is_stopping_.exchange(true)) return;
  // If the ring fails, the thread has ended or never will, because the store does not answer.
  std::chrono::milliseconds patience = kFarewell;
  if (!try_to([this] { ring({rank_}); })) patience = {};
  const auto own = std::this_thread::get_id();
  const bool ended = ear_.get_id() != own && has_listened_.get_future().wait_for(patience) == std::future_status::ready;
  ended ? ear_.join() : ear_.detach();
}

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
