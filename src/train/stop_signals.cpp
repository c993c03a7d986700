#include "train/stop_signals.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <map>
#include <string_view>

#include "comm/core/mutex.h"
#include "comm/posix/signals.h"
#include "launch/end_requests.h"
#include "launch/variables.h"

namespace fsdp::train {
namespace {

using Clock = std::chrono::steady_clock;

// See Note [Variables of a signal handler] in stop_signals.h.
std::atomic<int> received_signal{0};
std::atomic<Clock::rep> received_at{0};  // time of the first signal; 0 if none has come
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<Clock::rep>::is_always_lock_free);

extern "C" void remember_signal(int number) { received_signal.store(number, std::memory_order_relaxed); }

void say(std::string_view text) {
  const PipeSignalBlocked blocked;  // Ctrl-C also ends a "tee" that reads stderr, so the write may raise SIGPIPE
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

// This handler calls only async-signal-safe functions. PipeSignalBlocked calls sigtimedwait, and on Linux that is a
// plain system call.
extern "C" void count_signal(int number) {
  const int error = errno;
  const auto now = Clock::now().time_since_epoch();
  if (Clock::rep first = 0; received_at.compare_exchange_strong(first, now.count())) {
    remember_signal(number);
    say(number == SIGINT ? "[fsdp] SIGINT" : "[fsdp] SIGTERM");
    say(" was received: training saves and stops after this step; a second signal ends the process\n");
  } else if (is_second_request(now - Clock::duration(first))) {
    ::signal(number, SIG_DFL);
    ::raise(number);  // the signal ends the process when this handler returns
  }
  errno = error;
}

bool is_ours(const struct sigaction& action) {
  return action.sa_handler == count_signal || action.sa_handler == remember_signal;
}

// The process's state, which all StopSignals share.
struct Installed {
  Mutex mutex;
  std::weak_ptr<const StopSignals> current FSDP_GUARDED_BY(mutex);
  // The actions that were in place before the first StopSignals was made, by signal. Ignored signals have no entry.
  std::map<int, struct sigaction> original FSDP_GUARDED_BY(mutex);
};

Installed& installed() {
  static Installed of_process;
  return of_process;
}

}  // namespace

// The caller holds the mutex.
StopSignals::StopSignals() {
  received_signal.store(0, std::memory_order_relaxed);
  received_at.store(0);
  struct sigaction action{};
  action.sa_handler = std::getenv(kCountsSignalsVariable) == nullptr ? count_signal : remember_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int number : {SIGTERM, SIGINT}) sigaddset(&action.sa_mask, number);
  auto& original = installed().original;
  for (const int number : {SIGTERM, SIGINT}) {
    if (is_ignored(number)) {
      original.erase(number);
      continue;
    }
    struct sigaction before{};
    sigaction(number, &action, &before);
    if (!is_ours(before)) original[number] = before;
  }
}

StopSignals::~StopSignals() {
  auto& [mutex, current, original] = installed();
  const MutexLock lock(mutex);
  const bool has_successor = !current.expired();
  if (has_successor || received() != 0) return;
  for (const auto& [number, action] : original) sigaction(number, &action, nullptr);
}

std::shared_ptr<const StopSignals> StopSignals::of_process() {
  auto& [mutex, current, original] = installed();
  const MutexLock lock(mutex);
  auto signals = current.lock();
  if (!signals) current = signals = std::shared_ptr<const StopSignals>(new StopSignals);
  return signals;
}

int StopSignals::received() const { return received_signal.load(std::memory_order_relaxed); }

}  // namespace fsdp::train
