#include "train/stop_signals.h"

#include <atomic>
#include <mutex>

#include "comm/posix/ignored_signal.h"

namespace fsdp::train {
namespace {

// See Note [The only variable of a signal's handler].
std::atomic<int> received_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void remember_signal(int signal) { received_signal.store(signal, std::memory_order_relaxed); }

}  // namespace

StopSignals::StopSignals() {
  received_signal.store(0, std::memory_order_relaxed);
  struct sigaction action {};
  action.sa_handler = remember_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGTERM, is_ignored(SIGTERM) ? nullptr : &action, &previous_terminate_);
  sigaction(SIGINT, is_ignored(SIGINT) ? nullptr : &action, &previous_interrupt_);
}

StopSignals::~StopSignals() {
  sigaction(SIGTERM, &previous_terminate_, nullptr);
  sigaction(SIGINT, &previous_interrupt_, nullptr);
}

std::shared_ptr<const StopSignals> StopSignals::of_process() {
  static std::mutex mutex;
  static std::weak_ptr<const StopSignals> current;
  const std::lock_guard lock(mutex);
  auto signals = current.lock();
  if (!signals) current = signals = std::shared_ptr<const StopSignals>(new StopSignals);
  return signals;
}

int StopSignals::received() const { return received_signal.load(std::memory_order_relaxed); }

}  // namespace fsdp::train
