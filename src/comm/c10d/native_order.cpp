#include "comm/c10d/native_order.h"

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
#include "comm/core/fingerprint.h"
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

NativeOrder::Failure failure_of(std::function<Verdict()> find_out) {
  return std::async(std::launch::deferred, std::move(find_out)).share();
}

bool has_failed(c10d::Backend& backend) {
  try {
    return backend.getError() != c10d::ErrorType::SUCCESS;
  } catch (const c10::Error&) {
    return false;  // this backend does not report errors
  }
}

}  // namespace

// The thread that watches the operations on accelerators, one in each process. While there are orders, it looks at the
// oldest operation of each order ten times a second. Thread-safe.
class NativeOrder::Watch {
 public:
  using Orders = std::vector<std::shared_ptr<NativeOrder>>;

  void add(std::weak_ptr<NativeOrder> order) {
    const MutexLock lock(mutex_);
    orders_.push_back(std::move(order));
    if (!std::exchange(runs_, true)) std::thread([this] { run(); }).detach();
  }

  Orders orders() {
    const MutexLock lock(mutex_);
    Orders alive;
    for (const auto& weak : orders_)
      if (auto order = weak.lock()) alive.push_back(std::move(order));
    return alive;
  }
  Orders orders_of(c10::Device device) {
    auto all = orders();
    std::erase_if(all, [&](const auto& order) { return order->options_.device != device; });
    return all;
  }

  // Makes every order of the device fail and then aborts all at once. Returns when the aborts have returned, or after
  // some seconds.
  void fail_all(c10::Device device, const Failure& failure) {
    auto failed = orders_of(device);
    std::erase_if(failed, [&](const auto& order) { return !order->fail(failure); });
    std::vector<std::future<void>> aborts;
    for (auto& order : failed) {
      std::promise<void> aborted;
      aborts.push_back(aborted.get_future());
      std::thread([failure, order = std::move(order), aborted = std::move(aborted)]() mutable {
        order->abort();
        aborted.set_value();
        // The failure may have been found in another group, so the ranks of this order may not know of it yet.
        const auto verdict = failure.get();
        if (!order->options_.roll_call->verdict()) order->options_.roll_call->pronounce(verdict);
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
      for (const auto& order : orders()) order->look();
      const MutexLock lock(mutex_);
      std::erase_if(orders_, [](const auto& weak) { return weak.expired(); });
      if (!orders_.empty()) continue;
      runs_ = false;
      return;
    }
  }

  Mutex mutex_;
  std::vector<std::weak_ptr<NativeOrder>> orders_ FSDP_GUARDED_BY(mutex_);
  bool runs_ FSDP_GUARDED_BY(mutex_) = false;
};

NativeOrder::Watch& NativeOrder::watch() { return of_this_process<Watch>(); }

// The part of an operation that the watch keeps. It holds no tensors.
struct NativeOrder::Progress {
  c10::Event given, finished;
  Fingerprint fingerprint;
  std::atomic<bool> is_issued = false;
  // The time at which the operation's inputs were there. Only the Watch uses it.
  std::optional<Clock::time_point> ready = std::nullopt;
};

class NativeOrder::Operation : public Work, public std::enable_shared_from_this<Operation> {
 public:
  Operation(std::shared_ptr<NativeOrder> order, const Fingerprint& fingerprint, MoveData move_data)
      : order_(std::move(order)),
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
      const MutexLock lock(order_->mutex_);
      // If there was a failure meanwhile, the backend is aborted and throws below.
      if (!order_->failure_.valid()) order_->in_flight_.push_back(progress_);
    }
    auto span = collective_span(order_->options_.ranks, fingerprint);
    const c10::StreamGuard guard(*order_->stream_);
    // Operations write into parameters' memory. Autograd must record nothing, and versions must stay.
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    try {
      progress_->given.block(*order_->stream_);
      move_data_(order_->exchange());
      finish();
    } catch (const std::exception& error) {
      span.end(/*has_failed=*/true);
      finish();  // a part of the operation may have been issued
      require_intact();
      order_->raise_alarm(Cause::kTransport, fingerprint, first_line(error.what()));
      require_intact();
    }
    fault_point("native issued");
  }
  /// Sets the lane's Work, which is done when the lane has issued the operation.
  void set_issued_by(std::shared_ptr<Work> lane) { lane_ = std::move(lane); }

  void wait() override {
    if (lane_) lane_->wait();
    // This is needed after a failure too: release() drops the tensors, and the device may still use them.
    progress_->finished.block(current_stream(device()));
    release();
    require_intact();
  }
  bool lets_others_go_on() const override { return lane_ != nullptr; }
  void then(Next next) override {
    if (!lane_) return follow(next);
    lane_->then([operation = shared_from_this(), next = std::move(next)] { operation->follow(next); });
  }

 private:
  c10::Device device() const { return order_->options_.device; }
  void require_intact() const { order_->require_intact(describe(progress_->fingerprint, order_->options_.ranks)); }
  void finish() {
    progress_->finished.record(*order_->stream_);
    progress_->is_issued = true;
  }
  // Runs `next` so that the work that it issues comes after this operation.
  void follow(const Next& next) {
    const c10::StreamGuard guard(*order_->stream_);
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

  const std::shared_ptr<NativeOrder> order_;
  const c10::Stream caller_;
  const std::shared_ptr<Progress> progress_;
  MoveData move_data_;
  std::shared_ptr<Work> lane_;
  std::once_flag once_;
};

std::shared_ptr<NativeOrder> NativeOrder::start(Options options) {
  const std::shared_ptr<NativeOrder> order(new NativeOrder(std::move(options)));
  order->options_.roll_call->enroll(order);
  watch().add(order);
  return order;
}

std::shared_ptr<Work> NativeOrder::run(Fingerprint fingerprint, MoveData move_data) {
  auto operation = prepare(fingerprint, std::move(move_data));
  operation->issue();
  return operation;
}

std::shared_ptr<Work> NativeOrder::run_in(Lane& lane, const Fingerprint& fingerprint, std::function<void()> meet,
                                          MoveData move_data) {
  auto operation = prepare(fingerprint, std::move(move_data));
  operation->set_issued_by(lane.submit(fingerprint, [operation, meet = std::move(meet)] {
    meet();
    operation->issue();
  }));
  return operation;
}

std::shared_ptr<NativeOrder::Operation> NativeOrder::prepare(Fingerprint fingerprint, MoveData move_data) {
  const auto device = options_.device;
  if (!stream_) stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  fingerprint.sequence = ++number_;
  if (options_.windows) options_.windows->note(options_.path, fingerprint);
  return std::make_shared<Operation>(shared_from_this(), fingerprint, std::move(move_data));
}

Exchange& NativeOrder::exchange() {
  {
    const MutexLock lock(mutex_);
    if (exchange_) return *exchange_;
  }
  auto backend = options_.connect();
  const MutexLock lock(mutex_);
  backend_ = std::move(backend);
  exchange_ = std::make_unique<NativeExchange>(backend_);
  return *exchange_;
}

void NativeOrder::require_agreement(const std::string& operation) {
  for (const auto& order : watch().orders_of(options_.device)) {
    if (order->options_.windows) order->options_.windows->close();
    order->compare_windows();
  }
  require_intact(operation);
}

void NativeOrder::require_intact(const std::string& operation) {
  // The roll call may have a verdict that it has not passed to this order yet.
  if (!failure().valid() && options_.roll_call->verdict()) interrupt();
  if (const auto failed = failure(); failed.valid()) raise(failed.get(), options_.ranks, operation);
}

// Raises the alarm. When it returns, every order of the device has failed.
void NativeOrder::raise_alarm(Cause cause, const Fingerprint& fingerprint, const std::string& detail) {
  const auto verdict = options_.roll_call->alarm(cause, -1, describe(fingerprint, options_.ranks), detail);
  // The roll call has interrupted this order, unless the store is gone.
  if (!failure().valid()) watch().fail_all(options_.device, failure_of([verdict] { return verdict; }));
}

void NativeOrder::compare_windows() {
  if (!options_.windows) return;
  // A store that is gone matters only when an operation fails.
  try_to([this] {
    if (const auto verdict = options_.windows->compare()) options_.roll_call->pronounce(*verdict);
  });
}

void NativeOrder::look() {
  compare_windows();
  while (const auto progress = oldest()) {
    const c10::DeviceGuard guard(options_.device);
    try {
      if (progress->is_issued && progress->finished.query()) {
        const MutexLock lock(mutex_);
        if (!in_flight_.empty()) in_flight_.pop_front();  // a failure clears the queue
        continue;
      }
      MutexLock lock(mutex_);
      const auto backend = backend_;
      lock.unlock();
      if (backend && has_failed(*backend)) {
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

bool NativeOrder::fail(const Failure& failure) {
  const MutexLock lock(mutex_);
  if (failure_.valid()) return false;
  failure_ = failure;
  in_flight_.clear();
  return true;
}

void NativeOrder::abort() {
  MutexLock lock(mutex_);
  const auto backend = backend_;
  lock.unlock();
  if (backend) try_to([&] { backend->abort(); });  // the backend may have failed already
}

// The roll call calls it. Which operation differs is found out later, by the first thread that throws.
void NativeOrder::interrupt() {
  const auto explain = [call = options_.roll_call, windows = options_.windows] {
    const auto verdict = *call->verdict();
    std::optional<Verdict> found;
    if (windows && verdict.kind != Verdict::Kind::kPeerLost) try_to([&] { found = windows->disagreement(); });
    return found.value_or(verdict);
  };
  // If this order failed before, the device's orders may be new ones that began after a restart, which must not fail.
  if (!failure().valid()) watch().fail_all(options_.device, failure_of(explain));
  // If the store is gone, no rank is left to tell.
  if (options_.windows) try_to([this] { options_.windows->publish(); });
}

std::string NativeOrder::status() const {
  const auto progress = oldest();
  if (!progress) return "";
  const std::string order = options_.name.empty() ? "" : str_cat(" on '", options_.name, "'");
  return str_cat(describe(progress->fingerprint, options_.ranks), order, ", on the device");
}

std::shared_ptr<NativeOrder::Progress> NativeOrder::oldest() const {
  const MutexLock lock(mutex_);
  return in_flight_.empty() ? nullptr : in_flight_.front();
}

NativeOrder::Failure NativeOrder::failure() const {
  const MutexLock lock(mutex_);
  return failure_;
}

}  // namespace fsdp
