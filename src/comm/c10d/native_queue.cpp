#include "comm/c10d/native_queue.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/thread_name.h>

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "comm/core/check.h"
#include "comm/core/current_stream.h"
#include "comm/core/fault_point.h"
#include "comm/posix/of_this_process.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kGlance{100};
// The longest wait for aborts: a device that does not end its work must not block the host's threads.
constexpr std::chrono::seconds kLongestAbort{10};

// The stream of the caller of an operation, while this thread runs that operation's continuation; otherwise null. The
// tensors of operations that the continuation starts belong to this stream.
thread_local const c10::Stream* t_caller = nullptr;

}  // namespace

// The thread that watches the operations on accelerators, one in each process. While there are queues, it looks at the
// oldest operation of each queue ten times a second. Thread-safe.
class NativeQueue::Watch {
 public:
  void add(std::weak_ptr<NativeQueue> queue) {
    const MutexLock lock(mutex_);
    queues_.push_back(std::move(queue));
    if (!std::exchange(runs_, true)) std::thread([this] { run(); }).detach();
  }

  // Returns the queues of the device, or all queues.
  std::vector<std::shared_ptr<NativeQueue>> queues(std::optional<c10::Device> device = std::nullopt) {
    const MutexLock lock(mutex_);
    std::vector<std::shared_ptr<NativeQueue>> alive;
    for (const auto& weak : queues_)
      if (auto queue = weak.lock(); queue && queue->options_.device == device.value_or(queue->options_.device))
        alive.push_back(std::move(queue));
    return alive;
  }

  // Makes every queue of the device fail and then aborts all their backends at once. Returns when the aborts have
  // returned, or after some seconds. The first thread that needs the verdict calls `find_out`.
  void fail_all(c10::Device device, std::function<Verdict()> find_out) {
    const Failure failure = std::async(std::launch::deferred, std::move(find_out)).share();
    auto failed = queues(device);
    std::erase_if(failed, [&](const auto& queue) { return !queue->fail(failure); });
    std::vector<std::future<void>> aborts;
    for (auto& queue : failed) {
      std::promise<void> aborted;
      aborts.push_back(aborted.get_future());
      std::thread([failure, queue = std::move(queue), aborted = std::move(aborted)]() mutable {
        // The backend may have failed already.
        if (const auto backend = queue->backend()) try_to([&] { backend->abort(); });
        aborted.set_value();
        // The failure may have been found in another group, so the ranks of this queue may not know of it yet.
        const auto verdict = failure.get();
        if (!queue->options_.roll_call->verdict()) queue->options_.roll_call->pronounce(verdict);
      }).detach();
    }
    const auto deadline = Clock::now() + kLongestAbort;
    for (const auto& abort : aborts) abort.wait_until(deadline);
  }

 private:
  void run() {
    c10::setThreadName("fsdp-device");
    while (true) {
      std::this_thread::sleep_for(kGlance);
      for (const auto& queue : queues()) queue->look();
      const MutexLock lock(mutex_);
      std::erase_if(queues_, [](const auto& weak) { return weak.expired(); });
      if (!queues_.empty()) continue;
      runs_ = false;
      return;
    }
  }

  Mutex mutex_;
  std::vector<std::weak_ptr<NativeQueue>> queues_ FSDP_GUARDED_BY(mutex_);
  bool runs_ FSDP_GUARDED_BY(mutex_) = false;
};

NativeQueue::Watch& NativeQueue::watch() { return of_this_process<Watch>(); }

// The part of an operation that the watch keeps. It holds no tensors.
struct NativeQueue::Progress {
  c10::Event given, finished;
  Fingerprint fingerprint;
  std::atomic<bool> is_issued = false;
  // The time at which the operation's inputs were there. Only the Watch uses it.
  std::optional<Clock::time_point> ready = std::nullopt;
};

class NativeQueue::Operation : public Work, public std::enable_shared_from_this<Operation> {
 public:
  Operation(std::shared_ptr<NativeQueue> queue, const Fingerprint& fingerprint, MoveData move_data)
      : queue_(std::move(queue)),
        caller_(t_caller && t_caller->device() == device() ? *t_caller : current_stream(device())),
        progress_(new Progress{c10::Event(device().type()), c10::Event(device().type()), fingerprint}),
        move_data_(std::move(move_data)) {
    progress_->given.record(current_stream(device()));
  }
  ~Operation() override {
    try_to([this] { release(); });  // this throws on a device that has failed
  }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  void issue() {
    const auto& fingerprint = progress_->fingerprint;
    require_intact();
    {
      const MutexLock lock(queue_->mutex_);
      // If there was a failure meanwhile, the backend is aborted and throws below.
      if (!queue_->failure_.valid()) queue_->in_flight_.push_back(progress_);
    }
    auto span = collective_span(queue_->options_.ranks, fingerprint);
    const c10::StreamGuard guard(*queue_->stream_);
    // Operations write into parameters' memory: autograd must not record this, and version counters must not change.
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    try {
      progress_->given.block(*queue_->stream_);
      move_data_(queue_->exchange());
      finish();
    } catch (const std::exception& error) {
      span.end(/*has_failed=*/true);
      finish();  // a part of the operation may have been issued
      require_intact();
      queue_->raise_alarm(Cause::kTransport, fingerprint, first_line(error.what()));
      require_intact();
    }
    fault_point("native issued");
  }

  void wait() override {
    if (lane) lane->wait();
    // This is needed after a failure too: release() drops the tensors, and the device may still use them.
    progress_->finished.block(current_stream(device()));
    release();
    require_intact();
  }
  bool lets_others_go_on() const override { return lane != nullptr; }
  void then(Next next) override {
    if (!lane) return follow(next);
    lane->then([operation = shared_from_this(), next = std::move(next)] { operation->follow(next); });
  }

  /// The lane's Work, which is done when the lane has issued the operation; null if no lane issues it.
  std::shared_ptr<Work> lane;

 private:
  c10::Device device() const { return queue_->options_.device; }
  void require_intact() const { queue_->require_intact(describe(progress_->fingerprint, queue_->options_.ranks)); }
  void finish() {
    progress_->finished.record(*queue_->stream_);
    progress_->is_issued = true;
  }
  // Runs `next` so that the work that it issues comes after this operation.
  void follow(const Next& next) {
    const c10::StreamGuard guard(*queue_->stream_);
    const auto* before = std::exchange(t_caller, &caller_);
    next();
    t_caller = before;
  }
  void release() {
    std::call_once(once_, [this] {
      if (progress_->is_issued) progress_->finished.block(caller_);
      move_data_ = nullptr;
    });
  }

  const std::shared_ptr<NativeQueue> queue_;
  const c10::Stream caller_;
  const std::shared_ptr<Progress> progress_;
  MoveData move_data_;
  std::once_flag once_;
};

std::shared_ptr<NativeQueue> NativeQueue::start(Options options) {
  const std::shared_ptr<NativeQueue> queue(new NativeQueue(std::move(options)));
  queue->options_.roll_call->enroll(queue);
  watch().add(queue);
  return queue;
}

std::shared_ptr<Work> NativeQueue::run(Fingerprint fingerprint, MoveData move_data, Lane* lane,
                                       std::function<void()> meet) {
  const auto device = options_.device;
  if (!stream_) stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  fingerprint.sequence = ++number_;
  if (options_.windows) options_.windows->note(options_.path, fingerprint);
  auto operation = std::make_shared<Operation>(shared_from_this(), fingerprint, std::move(move_data));
  if (lane)
    operation->lane = lane->submit(fingerprint, [operation, meet = std::move(meet)] {
      meet();
      operation->issue();
    });
  else
    operation->issue();
  return operation;
}

Exchange& NativeQueue::exchange() {
  if (exchange_) return *exchange_;
  auto backend = options_.connect();
  exchange_ = make_native_exchange(backend);
  const MutexLock lock(mutex_);
  backend_ = std::move(backend);
  return *exchange_;
}

void NativeQueue::require_agreement(const std::string& operation) {
  for (const auto& queue : watch().queues(options_.device)) {
    if (queue->options_.windows) queue->options_.windows->close();
    queue->compare_windows();
  }
  require_intact(operation);
}

void NativeQueue::require_intact(const std::string& operation) {
  // The roll call may have a verdict that it has not passed to this queue yet.
  if (!failure().valid() && options_.roll_call->verdict()) interrupt();
  if (const auto failed = failure(); failed.valid()) raise(failed.get(), options_.ranks, operation);
}

// Raises the alarm. When it returns, every queue of the device has failed.
void NativeQueue::raise_alarm(Cause cause, const Fingerprint& fingerprint, const std::string& detail) {
  const auto verdict = options_.roll_call->alarm(cause, -1, describe(fingerprint, options_.ranks), detail);
  // The roll call has interrupted this queue, unless the store is gone.
  if (!failure().valid()) watch().fail_all(options_.device, [verdict] { return verdict; });
}

void NativeQueue::compare_windows() {
  if (!options_.windows) return;
  // A store that is gone matters only when an operation fails.
  try_to([this] {
    if (const auto verdict = options_.windows->compare()) options_.roll_call->pronounce(*verdict);
  });
}

void NativeQueue::look() {
  compare_windows();
  while (const auto progress = oldest()) {
    const c10::DeviceGuard guard(options_.device);
    try {
      if (progress->is_issued && progress->finished.query()) {
        const MutexLock lock(mutex_);
        if (!in_flight_.empty()) in_flight_.pop_front();  // a failure clears it
        continue;
      }
      bool has_failed = false;
      const auto backend = this->backend();
      // A backend that does not report errors throws.
      try_to([&] { has_failed = backend && backend->getError() != c10d::ErrorType::SUCCESS; });
      if (has_failed) {
        raise_alarm(Cause::kTransport, progress->fingerprint, "the device's backend failed");
      } else if (!progress->ready) {
        if (progress->given.query()) progress->ready = Clock::now();
      } else if (Clock::now() - *progress->ready > options_.timeout) {
        raise_alarm(Cause::kTimeout, progress->fingerprint, "its data did not move in time");
      }
    } catch (const std::exception& error) {
      raise_alarm(Cause::kTransport, progress->fingerprint, first_line(error.what()));
    }
    return;
  }
}

bool NativeQueue::fail(const Failure& failure) {
  const MutexLock lock(mutex_);
  if (failure_.valid()) return false;
  failure_ = failure;
  in_flight_.clear();
  return true;
}

// The roll call calls this function. Which operation differs is found out later, by the first thread that throws.
void NativeQueue::interrupt() {
  const auto explain = [call = options_.roll_call, windows = options_.windows] {
    const auto verdict = *call->verdict();
    std::optional<Verdict> found;
    if (windows && verdict.kind != Verdict::Kind::kPeerLost) try_to([&] { found = windows->disagreement(); });
    return found.value_or(verdict);
  };
  // If this queue failed before, the device's queues may be new ones that began after a restart, which must not fail.
  if (!failure().valid()) watch().fail_all(options_.device, explain);
  // If the store is gone, no rank is left to tell.
  if (options_.windows) try_to([this] { options_.windows->publish(); });
}

std::string NativeQueue::status() const {
  const auto progress = oldest();
  if (!progress) return "";
  const std::string queue = options_.name.empty() ? "" : str_cat(" on '", options_.name, "'");
  return str_cat(describe(progress->fingerprint, options_.ranks), queue, ", on the device");
}

std::shared_ptr<NativeQueue::Progress> NativeQueue::oldest() const {
  const MutexLock lock(mutex_);
  return in_flight_.empty() ? nullptr : in_flight_.front();
}

NativeQueue::Failure NativeQueue::failure() const {
  const MutexLock lock(mutex_);
  return failure_;
}

c10::intrusive_ptr<c10d::Backend> NativeQueue::backend() const {
  const MutexLock lock(mutex_);
  return backend_;
}

}  // namespace fsdp
