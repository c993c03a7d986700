#include "comm/c10d/lane.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/thread_name.h>

#include <utility>

#include "comm/core/check.h"
#include "comm/core/fault_point.h"
#include "comm/posix/signals.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;

// If a queue's timeout breaks the connections of other queues, these wait so long for that queue to raise the alarm.
constexpr std::chrono::milliseconds kWordOfAnotherQueue{10};
// The longest time for which a lane waits for its operation in progress to end.
constexpr std::chrono::seconds kLongestEnd{10};

// Removes the source line with which Gloo's messages begin.
std::string without_source_line(const std::string& what) {
  const size_t bracket = what.starts_with('[') ? what.find("] ") : std::string::npos;
  return bracket == std::string::npos ? what : what.substr(bracket + 2);
}

}  // namespace

// One operation, and its Work.
class Lane::Ticket : public Work {
 public:
  Ticket(const Fingerprint& its_fingerprint, std::function<void()> its_data)
      : fingerprint(its_fingerprint), move_data(std::move(its_data)) {}

  void wait() override { done_.get(); }
  bool lets_others_go_on() const override { return true; }
  void then(Next next) override {
    MutexLock lock(mutex_);
    if (!is_finished_) {
      next_ = std::move(next);
    } else if (!has_failed_) {
      lock.unlock();
      next();
    }
  }

  void finish(const std::exception_ptr& error) {
    MutexLock lock(mutex_);
    if (const auto next = std::exchange(next_, nullptr); next && !error) {
      lock.unlock();
      next();
      lock.lock();
    }
    is_finished_ = true;
    has_failed_ = static_cast<bool>(error);
    error ? promise_.set_exception(error) : promise_.set_value();
  }

  // Only the lane's thread uses these.
  Fingerprint fingerprint;
  std::function<void()> move_data;

 private:
  std::promise<void> promise_;
  const std::shared_future<void> done_ = promise_.get_future();
  Mutex mutex_;
  bool is_finished_ FSDP_GUARDED_BY(mutex_) = false, has_failed_ FSDP_GUARDED_BY(mutex_) = false;
  Next next_ FSDP_GUARDED_BY(mutex_);
};

std::shared_ptr<Lane> Lane::start(std::shared_ptr<Mail> mail, std::shared_ptr<RollCall> roll_call, std::string name,
                                  Ranks ranks) {
  const std::shared_ptr<Lane> lane(new Lane(std::move(mail), roll_call, std::move(name), std::move(ranks)));
  roll_call->enroll(lane);
  lane->thread_ = std::thread([lane] { lane->run(); });
  return {lane.get(), [lane](Lane*) { lane->stop(); }};
}

std::shared_ptr<Work> Lane::submit(const Fingerprint& fingerprint, std::function<void()> move_data) {
  auto ticket = std::make_shared<Ticket>(fingerprint, std::move(move_data));
  const MutexLock lock(mutex_);
  queued_.push_back(ticket);
  changed_.notify_all();
  return ticket;
}

void Lane::stop() {
  MutexLock lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
  lock.unlock();
  mail_->interrupt();  // even if no operation is in progress: the thread may just have taken a ticket
  const bool has_ended = ended_.get_future().wait_for(kLongestEnd) == std::future_status::ready;
  has_ended ? thread_.join() : thread_.detach();
}

std::string Lane::status() const {
  const MutexLock lock(mutex_);
  if (!operation_) return "";
  const int peer = waiting_for();
  const std::string lane = name_.empty() ? "" : str_cat(" on '", name_, "'");
  const std::string time = in_seconds(std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - since_));
  const std::string operation = describe(*operation_, ranks_) + lane;
  if (!busy_) return str_cat(operation, ", done ", time, " ago");
  if (peer < 0) return str_cat(operation, ", in progress for ", time);
  return str_cat(operation, ", waiting for rank ", ranks_.name_of(peer), " for ", time);
}

void Lane::run() {
  c10::setThreadName("fsdp-lane");
  const PipeSignalBlocked no_pipe_signal;
  // Collectives write into parameters' memory: autograd must not record this, and version counters must not change.
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  MutexLock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&]() FSDP_REQUIRES(mutex_) { return stopping_ || !queued_.empty(); });
    if (queued_.empty()) break;
    auto ticket = std::move(queued_.front());
    queued_.pop_front();
    if (stopping_ && !failure_) {
      failure_ = failure_of(ticket->fingerprint, "the process group was destroyed while this operation was queued");
    }
    lock.unlock();
    execute(*ticket);
    ticket.reset();
    lock.lock();
  }
  ended_.set_value();
}

void Lane::execute(Ticket& ticket) {
  if (!failure_) {
    ticket.fingerprint.sequence = ++sequence_;
    auto span = collective_span(ranks_, ticket.fingerprint);
    try {
      attempt(ticket);
    } catch (...) {
      failure_ = std::current_exception();
      span.end(/*has_failed=*/true);
    }
  }
  if (!failure_) {
    const MutexLock lock(mutex_);
    since_ = Clock::now();
    busy_ = false;
  }
  ticket.move_data = nullptr;
  ticket.finish(failure_);
  if (!failure_) mail_->prepare();
}

void Lane::attempt(Ticket& ticket) {
  const Fingerprint& mine = ticket.fingerprint;
  const auto raise = [&](const Verdict& verdict) { fsdp::raise(verdict, ranks_, describe(mine, ranks_)); };
  if (const auto verdict = roll_call_->verdict()) raise(*verdict);
  {
    const MutexLock lock(mutex_);
    operation_ = mine;
    busy_ = true;
    since_ = Clock::now();
  }
  try {
    fault_point("lane handshake");
    mail_->begin(mine);
    ticket.move_data();
    mail_->finish();
    fault_point("lane done");
  } catch (const Error&) {
    throw;
  } catch (const Disagreement& found) {
    const auto verdict = disagreement(ranks_, found.mine, found.peer, found.theirs, found.difference);
    raise(roll_call_->pronounce(verdict));
  } catch (const Interrupted&) {
    if (const auto verdict = roll_call_->verdict()) raise(*verdict);
    std::rethrow_exception(failure_of(mine, "the process group was destroyed while this operation was in progress"));
  } catch (const std::exception& error) {
    const int peer = mail_->waiting_for();
    const auto cause = mail_->is_out_of_time() ? Cause::kTimeout : Cause::kTransport;
    const std::string detail = without_source_line(first_line(error.what()));
    // The timeout of another queue has broken the connections of all queues. That queue is about to raise the alarm.
    if (detail.starts_with("Application timeout")) std::this_thread::sleep_for(kWordOfAnotherQueue);
    raise(roll_call_->alarm(cause, peer, describe(mine, ranks_), detail));
  }
}

std::exception_ptr Lane::failure_of(const Fingerprint& fingerprint, const std::string& what) const {
  return std::make_exception_ptr(Error(ranks_.where(describe(fingerprint, ranks_)) + what + "."));
}

}  // namespace fsdp
