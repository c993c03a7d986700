#include "comm/c10d/native_order.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <deque>
#include <future>
#include <mutex>
#include <optional>
#include <utility>

#include "comm/c10d/device_watch.h"
#include "comm/c10d/native_exchange.h"
#include "comm/core/check.h"
#include "comm/core/collective_span.h"
#include "comm/core/current_stream.h"
#include "comm/core/fault_point.h"
#include "comm/posix/of_this_process.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;

// Of the thread that runs what follows an operation: the caller's stream, whose tensors that is about.
thread_local const c10::Stream* t_caller = nullptr;

// What the watch keeps of an operation: no tensors.
struct Progress {
  explicit Progress(c10::DeviceType type) : given(type), finished(type) {}

  c10::Event given, finished;
  Fingerprint fingerprint;
  std::atomic<bool> is_issued = false;
  // The watch's: since when its inputs are there.
  std::optional<Clock::time_point> ready = std::nullopt;
};

bool has_failed(c10d::Backend& backend) {
  try {
    return backend.getError() != c10d::ErrorType::SUCCESS;
  } catch (const c10::Error&) {
    return false;  // this backend does not say
  }
}

}  // namespace

class NativeOrder::State : public RollCall::Witness, public DeviceWatch::Order {
 public:
  State(Connect connect, std::shared_ptr<const Wire> wire, std::shared_ptr<RollCall> call, Options wanted)
      : options(std::move(wanted)), roll_call(std::move(call)), connect_(std::move(connect)), wire_(std::move(wire)) {}
  ~State() override { watch().note_gone(); }

  static DeviceWatch& watch() { return of_this_process<DeviceWatch>(); }
  Exchange& exchange() {
    {
      std::lock_guard lock(mutex_);
      if (exchange_) return *exchange_;
    }
    const auto backend = connect_();
    std::lock_guard lock(mutex_);
    backend_ = backend;
    exchange_ =
        std::make_unique<NativeExchange>(backend, options.device, wire_, backend->getRank(), backend->getSize());
    return *exchange_;
  }

  // For what operations need beside the caller's tensors.
  c10::Stream stream() {
    if (!stream_) stream_ = c10::impl::VirtualGuardImpl(options.device.type()).getStreamFromGlobalPool(options.device);
    return *stream_;
  }
  void begin(const std::shared_ptr<Progress>& progress) {
    require_intact(progress->fingerprint);
    {
      std::lock_guard lock(mutex_);
      if (!failure_) in_flight_.push_back(progress);  // otherwise the backend says that it was aborted
    }
    watch().note_issued();
  }
  void require_intact(const std::string& operation) const {
    if (const auto failed = failure()) fsdp::raise(failed(), options.ranks, operation);
  }
  void require_intact(const Fingerprint& fingerprint) const {
    if (const auto failed = failure()) fsdp::raise(failed(), options.ranks, text_of(fingerprint));
  }
  /// Raises the alarm, after which every order of the device has failed.
  void raise_alarm(Cause cause, const Fingerprint& fingerprint, const std::string& detail) {
    const auto verdict = roll_call->alarm(cause, -1, text_of(fingerprint), detail);
    // It has interrupted this order, unless there is no store any more.
    if (!failure()) watch().fail_all(options.device, [verdict] { return verdict; });
  }
  void check_windows() {
    if (!options.windows) return;
    try {
      if (const auto verdict = options.windows->compare()) roll_call->pronounce(*verdict);
    } catch (const std::exception&) {
      // A store that is gone is no news until an operation fails.
    }
  }
  void compare() override {
    if (options.windows) options.windows->close();
    check_windows();
  }
  std::string text_of(const Fingerprint& fingerprint) const { return describe(fingerprint, options.ranks); }
  uint64_t next_number() { return ++number_; }

  c10::Device device() const override { return options.device; }
  bool look() override;
  bool fail(const DeviceWatch::Failure& failure) override {
    std::lock_guard lock(mutex_);
    if (failure_) return false;
    failure_ = failure;
    in_flight_.clear();
    return true;
  }
  void abort() override {
    const auto backend = this->backend();
    try {
      if (backend) backend->abort();
    } catch (const std::exception&) {
      // It has failed already.
    }
  }

  void pass_on(const Verdict& verdict) override {
    if (!roll_call->verdict()) roll_call->pronounce(verdict);
  }

  std::string status() const override;
  int waiting_for() const override { return -1; }
  void interrupt() override;

  const Options options;
  const std::shared_ptr<RollCall> roll_call;

 private:
  c10::intrusive_ptr<c10d::Backend> backend() const {
    std::lock_guard lock(mutex_);
    return backend_;
  }
  DeviceWatch::Failure failure() const {
    std::lock_guard lock(mutex_);
    return failure_;
  }
  std::shared_ptr<Progress> oldest() const {
    std::lock_guard lock(mutex_);
    return in_flight_.empty() ? nullptr : in_flight_.front();
  }
  void drop_oldest(const std::shared_ptr<Progress>& progress) {
    std::lock_guard lock(mutex_);
    if (!in_flight_.empty() && in_flight_.front() == progress) in_flight_.pop_front();
  }

  const Connect connect_;
  const std::shared_ptr<const Wire> wire_;
  std::optional<c10::Stream> stream_;
  uint64_t number_ = 0;  // of the newest operation
  mutable std::mutex mutex_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::unique_ptr<Exchange> exchange_;
  std::deque<std::shared_ptr<Progress>> in_flight_;
  DeviceWatch::Failure failure_;
};

// In the watch's thread.
bool NativeOrder::State::look() {
  check_windows();
  if (!oldest()) return false;
  const c10::DeviceGuard guard(options.device);
  while (const auto progress = oldest()) {
    const auto backend = this->backend();
    try {
      if (progress->is_issued && progress->finished.query()) {
        drop_oldest(progress);
        continue;
      }
      if (backend && has_failed(*backend)) {
        raise_alarm(Cause::kTransport, progress->fingerprint, "the device's backend failed");
      } else if (!progress->ready) {
        if (progress->given.query()) progress->ready = Clock::now();
      } else if (Clock::now() - *progress->ready > options.timeout) {
        raise_alarm(Cause::kTimeout, progress->fingerprint, "its data did not move in time");
      }
    } catch (const std::exception& error) {
      raise_alarm(Cause::kTransport, progress->fingerprint, first_line(error.what()));
    }
    return oldest() != nullptr;
  }
  return false;
}

// In the roll call's thread. The first thread that throws finds out more.
void NativeOrder::State::interrupt() {
  const auto explain = [call = roll_call, windows = options.windows] {
    const auto verdict = *call->verdict();
    if (!windows || verdict.kind == Verdict::Kind::kPeerLost) return verdict;
    try {
      return windows->disagreement().value_or(verdict);
    } catch (const std::exception&) {
      return verdict;  // there is no store any more
    }
  };
  // One that failed before may have been followed by others, which began anew.
  if (!failure())
    watch().fail_all(options.device, [explained = std::async(std::launch::deferred, explain).share()] {
      return explained.get();
    });
  try {
    if (options.windows) options.windows->publish();
  } catch (const std::exception&) {
    // The store is gone, so nobody is there to be told.
  }
}

std::string NativeOrder::State::status() const {
  const auto progress = oldest();
  if (!progress) return "";
  const std::string order = options.name.empty() ? "" : str_cat(" on '", options.name, "'");
  return str_cat(text_of(progress->fingerprint), order, ", on the device");
}

struct NativeOrder::Operation {
  Operation(std::shared_ptr<State> of, Fingerprint fingerprint, MoveData move)
      : state(std::move(of)),
        caller(t_caller && t_caller->device() == state->options.device ? *t_caller
                                                                       : current_stream(state->options.device)),
        stream(state->stream()),
        progress(std::make_shared<Progress>(state->options.device.type())),
        move_data(std::move(move)) {
    progress->fingerprint = fingerprint;
    progress->given.record(current_stream(state->options.device));
  }
  ~Operation() {
    try {
      let_go();
    } catch (const std::exception&) {
      // A device that failed orders nothing any more.
    }
  }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  void issue() {
    const auto& [options, fingerprint] = std::tie(state->options, progress->fingerprint);
    state->begin(progress);
    auto span = collective_span(options.ranks, fingerprint, options.name);
    const c10::StreamGuard guard(stream);
    // Operations write into parameters' memory: no graph, no version bumps.
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    try {
      progress->given.block(stream);
      move_data(state->exchange());
      finish();
    } catch (const std::exception& error) {
      span.end(Stage::kFailed);
      finish();  // of what was issued all the same
      state->require_intact(fingerprint);
      state->raise_alarm(Cause::kTransport, fingerprint, first_line(error.what()));
      state->require_intact(fingerprint);
    }
    fault_point("native issued");
  }

  // What `next` gives the current stream comes after this operation.
  void follow(const Work::Next& next) {
    const c10::StreamGuard guard(stream);
    const auto* before = std::exchange(t_caller, &caller);
    next();
    t_caller = before;
  }

  void let_go() {
    std::call_once(once, [this] {
      if (progress->is_issued) progress->finished.block(caller);
      move_data = nullptr;
    });
  }

  const std::shared_ptr<State> state;
  const c10::Stream caller, stream;
  const std::shared_ptr<Progress> progress;
  MoveData move_data;
  std::once_flag once;

 private:
  void finish() {
    progress->finished.record(stream);
    progress->is_issued = true;
  }
};

class NativeOrder::EventWork : public Work {
 public:
  /// `issued`: done when the operation was issued; null: it was.
  EventWork(std::shared_ptr<Operation> operation, std::shared_ptr<Work> issued = nullptr)
      : operation_(std::move(operation)), issued_(std::move(issued)) {}

  void wait() override {
    if (issued_) issued_->wait();
    const auto& [state, progress] = std::tie(*operation_->state, *operation_->progress);
    // After a failure too: the tensors go now, and the device may still be at them.
    progress.finished.block(current_stream(state.options.device));
    operation_->let_go();
    state.require_intact(progress.fingerprint);
  }
  bool lets_others_go_on() const override { return issued_ != nullptr; }
  void then(Next next) override {
    if (!issued_) return operation_->follow(next);
    issued_->then([operation = operation_, next = std::move(next)] { operation->follow(next); });
  }

 private:
  const std::shared_ptr<Operation> operation_;
  const std::shared_ptr<Work> issued_;
};

NativeOrder::NativeOrder(Connect connect, std::shared_ptr<const Wire> wire, std::shared_ptr<RollCall> roll_call,
                         Options options)
    : state_(std::make_shared<State>(std::move(connect), std::move(wire), std::move(roll_call), std::move(options))) {
  if (state_->options.device.is_cpu()) return;
  state_->roll_call->enroll(state_);
  State::watch().add(state_);
}

NativeOrder::~NativeOrder() = default;

void NativeOrder::connect() { state_->exchange(); }

std::shared_ptr<Work> NativeOrder::run(Fingerprint fingerprint, MoveData move_data) {
  fingerprint.sequence = state_->next_number();
  if (state_->options.windows) state_->options.windows->note(state_->options.path, fingerprint);
  auto operation = std::make_shared<Operation>(state_, fingerprint, std::move(move_data));
  operation->issue();
  return std::make_shared<EventWork>(std::move(operation));
}

std::shared_ptr<Work> NativeOrder::run_in(Lane& lane, const Fingerprint& fingerprint, std::function<void()> meet,
                                          MoveData move_data) {
  if (state_->options.device.is_cpu())
    return lane.submit(fingerprint, [state = state_, meet = std::move(meet), move = std::move(move_data)] {
      meet();
      move(state->exchange());
    });
  auto numbered = fingerprint;
  numbered.sequence = state_->next_number();
  auto operation = std::make_shared<Operation>(state_, numbered, std::move(move_data));
  auto issued = lane.submit(fingerprint, [operation, meet = std::move(meet)] {
    meet();
    operation->issue();
  });
  return std::make_shared<EventWork>(std::move(operation), std::move(issued));
}

void NativeOrder::require_agreement(const std::string& operation) const {
  if (state_->options.device.is_cpu()) return;
  State::watch().compare_all(state_->options.device);
  require_intact(operation);
}

void NativeOrder::require_intact(const std::string& operation) const { state_->require_intact(operation); }

}  // namespace fsdp
