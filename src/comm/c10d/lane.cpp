#include "comm/c10d/lane.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/thread_name.h>

#include <algorithm>
#include <utility>

#include "comm/core/check.h"
#include "comm/core/collective_span.h"
#include "comm/core/fault_point.h"
#include "comm/posix/pipe_signal.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;

// How long an idle lane leaves a job to the thread that begins it, which may wait for it at once.
constexpr std::chrono::microseconds kCourtesy{20};

std::chrono::milliseconds since(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - time);
}

// Without the source line that Gloo's words begin with.
std::string without_source_line(const std::string& what) {
  const size_t bracket = what.starts_with('[') ? what.find("] ") : std::string::npos;
  return bracket == std::string::npos ? what : what.substr(bracket + 2);
}

}  // namespace

// What wait() waits for.
class Lane::Ticket : public Work {
 public:
  explicit Ticket(std::weak_ptr<State> lane) : lane_(std::move(lane)) {}

  void wait() override;
  bool lets_others_go_on() const override { return true; }
  void then(Next next) override {
    std::unique_lock lock(mutex_);
    if (!done_) {
      next_ = std::move(next);
    } else if (!error_) {
      lock.unlock();
      next();
    }
  }

  void finish(std::exception_ptr error) {
    std::unique_lock lock(mutex_);
    if (const auto next = std::exchange(next_, nullptr); next && !error) {
      lock.unlock();
      next();
      lock.lock();
    }
    error_ = std::move(error);
    done_ = true;
    changed_.notify_all();
  }

 private:
  const std::weak_ptr<State> lane_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr error_;
  Next next_;
};

// Shared with the thread, which may have to be left behind.
class Lane::State : public RollCall::Witness, public std::enable_shared_from_this<Lane::State> {
 public:
  State(std::shared_ptr<Wire> wire, std::shared_ptr<Mail> mail, std::shared_ptr<RollCall> roll_call, Options options)
      : wire_(std::move(wire)),
        mail_(std::move(mail)),
        roll_call_(std::move(roll_call)),
        options_(std::move(options)) {}

  std::shared_ptr<Work> push(Job job);
  void run();
  void run_first(const Ticket& ticket);
  void stop();
  bool wait_until_ended(std::chrono::milliseconds time);

  std::string status() const override;
  void interrupt() override { wire_->interrupt(); }

 private:
  void run_next(std::unique_lock<std::mutex>& lock);
  void execute(Job& job);
  void attempt(Job& job, Span& span);
  [[noreturn]] void raise(const Verdict& verdict, const Fingerprint& fingerprint) const;
  std::string text_of(const Fingerprint& fingerprint) const { return describe(fingerprint, options_.ranks); }
  std::exception_ptr failure_of(const Fingerprint& fingerprint, const std::string& what);

  const std::shared_ptr<Wire> wire_;
  const std::shared_ptr<Mail> mail_;
  const std::shared_ptr<RollCall> roll_call_;
  const Options options_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool stopping_ = false, ended_ = false;
  bool runs_ = false;  // a thread runs a job
  // The operation in progress, or the last one.
  std::string operation_;
  bool busy_ = false;
  Clock::time_point since_;

  // Of the thread that runs.
  std::exception_ptr failure_;
  uint64_t sequence_ = 0;
};

Lane::Lane(std::shared_ptr<Wire> wire, std::shared_ptr<Mail> mail, std::shared_ptr<RollCall> roll_call, Options options)
    : state_(std::make_shared<State>(std::move(wire), std::move(mail), roll_call, std::move(options))) {
  roll_call->enroll(state_);
  thread_ = std::thread([state = state_] { state->run(); });
}

Lane::~Lane() {
  state_->stop();
  if (state_->wait_until_ended(std::chrono::seconds(10))) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

std::shared_ptr<Work> Lane::submit(Fingerprint fingerprint, MoveData move_data) {
  return state_->push({fingerprint, std::move(move_data), nullptr});
}

std::shared_ptr<Work> Lane::State::push(Job job) {
  auto ticket = job.ticket = std::make_shared<Ticket>(weak_from_this());
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_all();
  return ticket;
}

void Lane::State::stop() {
  std::lock_guard lock(mutex_);
  stopping_ = true;
  wire_->interrupt();  // also if nothing is in progress: a job may just have been taken from the queue
  changed_.notify_all();
}

bool Lane::State::wait_until_ended(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, time, [&] { return ended_; });
}

std::string Lane::State::status() const {
  std::lock_guard lock(mutex_);
  if (operation_.empty()) return "";
  const std::string lane = options_.name.empty() ? "" : str_cat(" on '", options_.name, "'");
  const std::string time = in_seconds(since(since_));
  const int peer = wire_->waiting_for();
  if (!busy_) return str_cat(operation_, lane, ", done ", time, " ago");
  if (peer < 0) return str_cat(operation_, lane, ", in progress for ", time);
  return str_cat(operation_, lane, ", waiting for rank ", options_.ranks.name_of(peer), " for ", time);
}

void Lane::State::run() {
  c10::setThreadName("fsdp-lane");
  const PipeSignalBlocked no_pipe_signal;
  std::unique_lock lock(mutex_);
  while (true) {
    const auto is_called = [&] { return !runs_ && (stopping_ || !jobs_.empty()); };
    const bool was_called = is_called();
    changed_.wait(lock, is_called);
    if (jobs_.empty()) break;
    if (!was_called && changed_.wait_for(lock, kCourtesy, [&] { return runs_ || jobs_.empty(); })) continue;
    run_next(lock);
  }
  ended_ = true;
  changed_.notify_all();
}

// Runs the job of `ticket` in the thread that waits for it, if it is its turn: that spares two changes of threads.
void Lane::State::run_first(const Ticket& ticket) {
  std::unique_lock lock(mutex_);
  if (!runs_ && !jobs_.empty() && jobs_.front().ticket.get() == &ticket) run_next(lock);
}

void Lane::State::run_next(std::unique_lock<std::mutex>& lock) {
  const PipeSignalBlocked no_pipe_signal;
  // Collectives write into parameters' memory: no graph, no version bumps.
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  Job job = std::move(jobs_.front());
  jobs_.pop_front();
  if (stopping_ && !failure_) {
    failure_ = failure_of(job.fingerprint, "the process group was destroyed while it was queued");
  }
  runs_ = true;
  lock.unlock();
  execute(job);
  job = {};
  lock.lock();
  runs_ = false;
  if (stopping_ || !jobs_.empty()) changed_.notify_all();
}

void Lane::Ticket::wait() {
  std::unique_lock lock(mutex_);
  if (!done_) {
    // What follows a collective belongs in the lane's thread.
    const auto lane = next_ ? nullptr : lane_.lock();
    lock.unlock();
    if (lane) lane->run_first(*this);
    lock.lock();
    changed_.wait(lock, [&] { return done_; });
  }
  if (error_) std::rethrow_exception(error_);
}

void Lane::State::execute(Job& job) {
  if (!failure_) {
    job.fingerprint.sequence = ++sequence_;
    auto span = collective_span(options_.ranks, job.fingerprint, options_.name);
    try {
      attempt(job, span);
    } catch (...) {
      failure_ = std::current_exception();
      span.end(Stage::kFailed);
    }
  }
  {
    std::lock_guard lock(mutex_);
    if (!failure_) since_ = Clock::now();
    busy_ = static_cast<bool>(failure_) && busy_;
  }
  job.move_data = nullptr;
  job.ticket->finish(failure_);
}

void Lane::State::attempt(Job& job, Span& span) {
  const Fingerprint& mine = job.fingerprint;
  if (const auto verdict = roll_call_->verdict()) raise(*verdict, mine);
  const auto begin = Clock::now();
  wire_->begin_operation();
  {
    std::lock_guard lock(mutex_);
    operation_ = text_of(mine);
    busy_ = true;
    since_ = begin;
  }
  try {
    fault_point("lane handshake");
    mail_->begin(mine, [&] {
      span.reach(Stage::kAgreed);
      fault_point("lane agreed");
    });
    job.move_data();
    mail_->finish();
    fault_point("lane done");
  } catch (const Error&) {
    throw;
  } catch (const Disagreement& found) {
    const auto verdict = disagreement(options_.ranks, found.mine, found.peer, found.theirs, found.difference);
    raise(roll_call_->pronounce(verdict), mine);
  } catch (const Interrupted&) {
    if (const auto verdict = roll_call_->verdict()) raise(*verdict, mine);
    std::rethrow_exception(failure_of(mine, "the process group was destroyed while it was in progress"));
  } catch (const std::exception& error) {
    const int peer = wire_->waiting_for();
    const bool timed_out = since(begin) >= options_.timeout;
    raise(roll_call_->alarm(timed_out ? Cause::kTimeout : Cause::kTransport, peer, text_of(mine),
                            without_source_line(first_line(error.what()))),
          mine);
  }
}

void Lane::State::raise(const Verdict& verdict, const Fingerprint& fingerprint) const {
  fsdp::raise(verdict, options_.ranks, text_of(fingerprint));
}

std::exception_ptr Lane::State::failure_of(const Fingerprint& fingerprint, const std::string& what) {
  return std::make_exception_ptr(Error(options_.ranks.where(text_of(fingerprint)) + what + "."));
}

}  // namespace fsdp
