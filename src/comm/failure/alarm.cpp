#include "comm/failure/alarm.h"

#include <c10/util/thread_name.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <thread>
#include <utility>

#include "comm/core/text.h"
#include "comm/posix/of_this_process.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;

// A wait that ends by itself begins again.
constexpr std::chrono::hours kLongWait{24};
// How long a store that does not answer may keep this process from ending.
constexpr std::chrono::seconds kFarewell{3};
// What a process sent before it ended arrives meanwhile.
constexpr int kArrivalMilliseconds = 500;

std::string key_of(int rank) { return str_cat("alarm/", rank); }

}  // namespace

// Note [Alarm]
// Whoever has something for other ranks (a question, a verdict) first writes it under keys of their group, then sets
// the key alarm/R of each of them. Rank R waits for that key, deletes it and then looks at what there is: what is written
// after it has looked comes with another ring. A rank ends its own wait by setting its own key.

// Shared with the threads, which may have to be left behind.
struct Alarm::State {
  State(StorePtr own, StorePtr for_rings, int number, std::shared_ptr<Neighbours> processes)
      : listening(std::move(own)),
        ringing(std::move(for_rings)),
        rank(number),
        neighbours(std::move(processes)),
        ending(eventfd(0, EFD_CLOEXEC)) {}

  template <class Act>
  void tell(Act act) {
    std::unique_lock lock(mutex);
    const auto all = listeners;
    lock.unlock();
    for (const auto& weak : all)
      if (const auto listener = weak.lock()) act(*listener);
  }

  void listen() {
    c10::setThreadName("fsdp-alarm");
    for (auto begin = Clock::now(); !is_stopping(); begin = Clock::now()) {
      try {
        listening->wait({key_of(rank)}, kLongWait);
        if (is_stopping()) break;
        listening->deleteKey(key_of(rank));
      } catch (const std::exception&) {
        // A store that went away is no news until a collective fails: ranks may leave in any order.
        if (Clock::now() - begin < kLongWait) break;
      }
      tell([](Listener& listener) { listener.look(); });
    }
    end_thread();
  }

  void watch_processes() {
    c10::setThreadName("fsdp-neighbours");
    for (auto ranks = neighbours->wait(ending.number()); !ranks.empty(); ranks = neighbours->wait(ending.number())) {
      pollfd stops{ending.number(), POLLIN, 0};
      if (poll(&stops, 1, kArrivalMilliseconds) > 0) break;
      for (const int ended : ranks) tell([&](Listener& listener) { listener.note_end(ended); });
    }
    end_thread();
  }

  bool is_stopping() {
    const std::lock_guard lock(mutex);
    return stopping;
  }
  void end_thread() {
    const std::lock_guard lock(mutex);
    --running;
    changed.notify_all();
  }

  void ring(const std::vector<int>& ranks) const {
    std::vector<std::string> keys;
    for (const int other : ranks) keys.push_back(key_of(other));
    const std::vector<uint8_t> rung{'1'};
    if (ringing->hasExtendedApi()) return ringing->multiSet(keys, std::vector(keys.size(), rung));
    for (const auto& key : keys) ringing->set(key, rung);
  }

  // Idempotent. In a child that was forked there are no threads.
  void stop() {
    if (process != getpid()) return;
    std::unique_lock lock(mutex);
    if (std::exchange(stopping, true)) return;
    lock.unlock();
    const uint64_t one = 1;
    static_cast<void>(!write(ending.number(), &one, sizeof one));
    try {
      ring({rank});
    } catch (const std::exception&) {
      // Then the thread has ended, or the store does not answer.
    }
    const auto is_own = [](const std::thread& thread) { return thread.get_id() == std::this_thread::get_id(); };
    const int left = std::ranges::any_of(threads, is_own) ? 1 : 0;
    lock.lock();
    const bool ended = changed.wait_for(lock, kFarewell, [&] { return running == left; });
    lock.unlock();
    for (auto& thread : threads) ended && !is_own(thread) ? thread.join() : thread.detach();
  }

  const StorePtr listening, ringing;
  const int rank;
  const std::shared_ptr<Neighbours> neighbours;
  const Descriptor ending;
  const pid_t process = getpid();
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::weak_ptr<Listener>> listeners;
  bool stopping = false;
  int running = 0;
  std::vector<std::thread> threads;
};

namespace {

// leave_all() walks through these.
struct Started {
  std::mutex mutex;
  std::vector<std::weak_ptr<Alarm::State>> alarms;
};

}  // namespace

Alarm::~Alarm() {
  if (state_) state_->stop();
}

void Alarm::start(const std::function<StorePtr()>& connect, const Ranks& ranks,
                  std::shared_ptr<Neighbours> neighbours) {
  const std::lock_guard lock(mutex_);
  if (state_) return;
  auto listening = connect(), ringing = connect();
  ringing->setTimeout(kFarewell);
  state_ = std::make_shared<State>(std::move(listening), std::move(ringing), ranks.name(), std::move(neighbours));
  {
    auto& [started, alarms] = of_this_process<Started>();
    const std::lock_guard among_all(started);
    std::erase_if(alarms, [](const auto& other) { return other.expired(); });
    alarms.push_back(state_);
  }
  state_->running = 1;
  state_->threads.emplace_back([state = state_] { state->listen(); });
  if (!state_->neighbours || state_->neighbours->empty()) return;
  ++state_->running;
  state_->threads.emplace_back([state = state_] { state->watch_processes(); });
}

void Alarm::add(std::weak_ptr<Listener> listener) {
  const std::lock_guard lock(state_->mutex);
  std::erase_if(state_->listeners, [](const auto& other) { return other.expired(); });
  state_->listeners.push_back(std::move(listener));
}

void Alarm::ring(const std::vector<int>& ranks) const { state_->ring(ranks); }

void Alarm::leave_all() {
  std::vector<std::weak_ptr<State>> alarms;
  {
    const std::lock_guard lock(of_this_process<Started>().mutex);
    alarms = of_this_process<Started>().alarms;
  }
  for (const auto& weak : alarms) {
    const auto alarm = weak.lock();
    if (!alarm) continue;
    alarm->tell([](Listener& listener) { listener.leave(); });
    alarm->stop();
  }
}

}  // namespace fsdp
