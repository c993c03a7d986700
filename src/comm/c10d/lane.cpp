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

// How long an order has to say that its timeout ended what others of the same connections wait for.
constexpr std::chrono::milliseconds kWordOfAnotherOrder{10};

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
  void wait() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_; });
    if (error_) std::rethrow_exception(error_);
  }
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
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr error_;
  Next next_;
};

// Shared with the thread, which may have to be left behind.
class Lane::State : public RollCall::Witness {
 public:
  State(std::shared_ptr<Wire> wire, std::shared_ptr<Mail> mail, std::shared_ptr<RollCall> roll_call, Options options)
      : wire_(std::move(wire)),
        mail_(std::move(mail)),
        roll_call_(std::move(roll_call)),
        options_(std::move(options)) {}

  std::shared_ptr<Work> push(Job job);
  void run();
  void stop();
  bool wait_until_ended(std::chrono::milliseconds time);

  std::string status() const override;
  int waiting_for() const override { return wire_->waiting_for(); }
  void interrupt() override { wire_->interrupt(); }

 private:
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
  // The operation in progress, or the last one.
  std::string operation_;
  bool busy_ = false;
  Clock::time_point since_;

  // Of the thread alone.
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
  auto ticket = job.ticket = std::make_shared<Ticket>();
  std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
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
  // Collectives write into parameters' memory: no graph, no version bumps.
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) break;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    if (stopping_ && !failure_) {
      failure_ = failure_of(job.fingerprint, "the process group was destroyed while it was queued");
    }
    lock.unlock();
    execute(job);
    job = {};
    lock.lock();
  }
  ended_ = true;
  changed_.notify_all();
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
  if (!failure_) mail_->prepare();
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
    const std::string detail = without_source_line(first_line(error.what()));
    // The timeout of another order ends the connections of all; that order is about to tell it.
    if (detail.starts_with("Application timeout")) std::this_thread::sleep_for(kWordOfAnotherOrder);
    raise(roll_call_->alarm(timed_out ? Cause::kTimeout : Cause::kTransport, peer, text_of(mine), detail), mine);
  }
}

void Lane::State::raise(const Verdict& verdict, const Fingerprint& fingerprint) const {
  fsdp::raise(verdict, options_.ranks, text_of(fingerprint));
}

std::exception_ptr Lane::State::failure_of(const Fingerprint& fingerprint, const std::string& what) {
  return std::make_exception_ptr(Error(options_.ranks.where(text_of(fingerprint)) + what + "."));
}

}  // namespace fsdp
