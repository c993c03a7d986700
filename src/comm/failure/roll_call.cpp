#include "comm/failure/roll_call.h"

#include <c10/util/thread_name.h>

#include "comm/core/check.h"
#include "comm/posix/of_this_process.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kStep{25};

std::string report_key(int rank) { return str_cat("report/", rank); }
std::string left_key(int rank) { return str_cat("left/", rank); }
std::string acknowledged_key(int rank) { return str_cat("acknowledged/", rank); }

// leave_all() walks through these: every roll call that this process has running.
struct Running {
  std::mutex mutex;
  std::vector<std::weak_ptr<RollCall>> calls;
};

}  // namespace

// Note [Roll call]
// Keys, all under the group's prefix:
//   alarm             somebody's collective failed, or a verdict is there
//   report/R          rank R's answer; no answer means lost
//   left/R            rank R destroyed its process group; stands in for its answer
//   answers           how many ranks have answered or left
//   judges            how many ranks waited for a verdict in vain
//   verdict           set once; every rank throws it
//   acknowledged/R    rank R has read the verdict
// One rank reads the answers: the last to give its own, or the first whose patience ends.
// The rank that hosts the store waits, a few seconds at most, for the others' acknowledgement before it throws: the
// program may end of it, and would take the verdict with it.

std::shared_ptr<RollCall> RollCall::start(c10::intrusive_ptr<c10d::Store> store, Ranks ranks, RollCallOptions options) {
  std::shared_ptr<RollCall> call(new RollCall(std::move(store), std::move(ranks), options));
  // The thread keeps the object alive, should it have to be left behind with a store that does not answer.
  call->thread_ = std::thread([call] { call->run(); });
  auto& [mutex, calls] = of_this_process<Running>();
  std::lock_guard lock(mutex);
  std::erase_if(calls, [](const auto& other) { return other.expired(); });
  calls.push_back(call);
  return call;
}

void RollCall::leave_all() {
  std::vector<std::weak_ptr<RollCall>> calls;
  {
    std::lock_guard lock(of_this_process<Running>().mutex);
    calls = of_this_process<Running>().calls;
  }
  for (const auto& weak : calls) {
    if (const auto call = weak.lock()) call->leave();
  }
}

RollCall::RollCall(c10::intrusive_ptr<c10d::Store> store, Ranks ranks, RollCallOptions options)
    : store_(std::move(store)), ranks_(std::move(ranks)), options_(options) {}

RollCall::~RollCall() {
  if (thread_.joinable()) thread_.detach();
}

void RollCall::enroll(std::weak_ptr<Witness> witness) {
  std::lock_guard lock(mutex_);
  witnesses_.push_back(std::move(witness));
}

Verdict RollCall::alarm(Cause cause, int waiting_for, const std::string& operation, const std::string& detail) {
  const std::string last = operations();
  std::unique_lock lock(mutex_);
  if (!alarm_) alarm_ = Report{cause, waiting_for, last, str_cat("rank ", ranks_.name(), "'s ", operation), detail};
  changed_.notify_all();
  const auto patience = 2 * options_.answer_time + 4 * options_.poll;
  changed_.wait_for(lock, patience + farewell(), [&] { return may_throw(); });
  if (verdict_) return *verdict_;
  store_is_silent_ = !finished_;
  lock.unlock();
  return store_is_gone("it does not answer");
}

Verdict RollCall::pronounce(Verdict verdict) {
  std::unique_lock lock(mutex_);
  pronounced_ = verdict;
  changed_.notify_all();
  const auto patience = options_.answer_time + 4 * options_.poll;
  changed_.wait_for(lock, patience + farewell(), [&] { return may_throw(); });
  return verdict;
}

// How long the rank that hosts the store waits for the others.
std::chrono::milliseconds RollCall::farewell() const {
  return hosts_store() ? std::max(options_.answer_time, 6 * options_.poll) : std::chrono::milliseconds(0);
}

bool RollCall::may_throw() const { return finished_ || (verdict_.has_value() && !hosts_store()); }

std::optional<Verdict> RollCall::verdict() const {
  std::unique_lock lock(mutex_);
  if (verdict_) changed_.wait_for(lock, farewell(), [&] { return may_throw(); });
  return verdict_;
}

std::optional<Verdict> RollCall::known() const {
  std::lock_guard lock(mutex_);
  return verdict_;
}

void RollCall::leave() {
  std::unique_lock lock(mutex_);
  leaving_ = true;
  changed_.notify_all();
  changed_.wait_for(lock, std::chrono::seconds(3), [&] { return finished_ || store_is_silent_; });
  if (!thread_.joinable()) return;  // another call was faster
  std::thread thread = std::exchange(thread_, {});
  // A store that does not answer must not keep this process: the thread stays behind.
  if (!finished_) return thread.detach();
  lock.unlock();
  thread.join();
}

void RollCall::run() {
  c10::setThreadName("fsdp-roll-call");
  bool store_works = true;
  while (true) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, options_.poll, [&] { return leaving_ || alarm_ || pronounced_; });
    const bool leaving = leaving_, raised = alarm_ || pronounced_;
    lock.unlock();
    if (leaving && !raised) break;
    try {
      // A store that went away is no news until a collective fails: ranks may leave in any order.
      if (raised || (store_works && (store_->check({"alarm"}) || notice_death()))) {
        conclude();
        break;
      }
    } catch (const std::exception&) {
      store_works = false;
    }
  }
  try {
    if (!known() && store_works) {
      const std::string last = operations();
      store_->set(left_key(ranks_.rank), encode(Report{Cause::kLeft, -1, "left; before: " + last, {}, {}}));
      const bool is_last = store_->add("answers", 1) == ranks_.world_size;
      if (is_last && store_->check({"alarm"}))
        store_->compareSet("verdict", "", encode(decide(ranks_, read_reports(), options_.answer_time)));
    }
  } catch (const std::exception&) {
    // Nobody is there to be told.
  }
  std::lock_guard lock(mutex_);
  finished_ = true;
  changed_.notify_all();
}

// A rank of this host whose process has ended, and that has not left, is lost: its connections may be open still. The
// verdict waits until the next look, so that what the rank sent before arrives.
bool RollCall::notice_death() {
  if (!options_.neighbours) return false;
  for (const int rank : options_.neighbours->ended()) {
    if (gone_.contains(rank) || ended_.insert(rank).second) continue;
    if (store_->check({left_key(rank)})) {
      gone_.insert(rank);
      continue;
    }
    const std::string last = operations();
    std::lock_guard lock(mutex_);
    const int name = ranks_.name_of(rank);
    pronounced_ = Verdict{Verdict::Kind::kPeerLost, name,
                          str_cat("rank ", name, " has ended. This rank's last operations: ", last, '.', kLookAtLost)};
    return true;
  }
  return false;
}

void RollCall::conclude() {
  Verdict verdict;
  try {
    verdict = call_roll();
    settle(verdict);
    acknowledge();
  } catch (const std::exception& error) {
    settle(store_is_gone(first_line(error.what())));
  }
}

// Makes the verdict known in this rank and ends what its lanes wait for.
void RollCall::settle(Verdict verdict) {
  std::vector<std::weak_ptr<Witness>> witnesses;
  {
    std::lock_guard lock(mutex_);
    if (!verdict_) verdict_ = std::move(verdict);
    witnesses = witnesses_;
    changed_.notify_all();
  }
  for (const auto& weak : witnesses) {
    if (const auto witness = weak.lock()) witness->interrupt();
  }
}

Verdict RollCall::call_roll() {
  std::optional<Verdict> known;
  Report report;
  const std::string last = operations();
  {
    std::lock_guard lock(mutex_);
    known = pronounced_;
    report = alarm_.value_or(Report{Cause::kNone, -1, last, {}, {}});
  }
  store_->set(report_key(ranks_.rank), encode(report));
  if (!known) store_->set("alarm", "1");
  const bool is_last = store_->add("answers", 1) == ranks_.world_size;
  if (!known && decides(is_last)) known = decide(ranks_, read_reports(), options_.answer_time);
  const std::string verdict = known ? store_->compareSet("verdict", "", encode(*known)) : store_->get_to_str("verdict");
  if (known) store_->set("alarm", "1");
  return decode<Verdict>(verdict);
}

bool RollCall::decides(bool is_last) {
  if (is_last) return true;
  if (comes("verdict", options_.answer_time)) return false;
  return store_->add("judges", 1) == 1 || !comes("verdict", options_.answer_time / 2);
}

// A store that is gone shows at the next call.
bool RollCall::comes(const std::string& key, std::chrono::milliseconds time) {
  try {
    store_->wait({key}, time);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

std::vector<std::optional<Report>> RollCall::read_reports() {
  std::vector<std::optional<Report>> reports(static_cast<size_t>(ranks_.world_size));
  for (int rank = 0; rank < ranks_.world_size; ++rank) {
    for (const auto& key : {report_key(rank), left_key(rank)})
      if (!reports[rank] && store_->check({key})) reports[rank] = decode<Report>(store_->get_to_str(key));
  }
  return reports;
}

void RollCall::acknowledge() {
  store_->set(acknowledged_key(ranks_.rank), "1");
  if (!hosts_store()) return;
  const auto deadline = Clock::now() + farewell();
  for (int rank = 1; rank < ranks_.world_size; ++rank) {
    while (!store_->check({acknowledged_key(rank)}) && Clock::now() < deadline) {
      if (known()->rank == rank || store_->check({left_key(rank)})) break;
      std::this_thread::sleep_for(kStep);
    }
  }
}

Verdict RollCall::store_is_gone(const std::string& detail) const {
  return store_lost(ranks_.rank, options_.store_in_rank_0, detail,
                    " This rank's last operations: " + operations() + '.');
}

std::vector<std::weak_ptr<RollCall::Witness>> RollCall::witnesses() const {
  std::lock_guard lock(mutex_);
  return witnesses_;
}

std::string RollCall::operations() const {
  std::string text;
  for (const auto& weak : witnesses()) {
    const auto witness = weak.lock();
    const std::string status = witness ? witness->status() : "";
    if (!status.empty()) text += (text.empty() ? "" : ", ") + status;
  }
  return text.empty() ? "none yet" : text;
}

}  // namespace fsdp
