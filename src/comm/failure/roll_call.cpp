#include "comm/failure/roll_call.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <utility>

#include "comm/core/check.h"
#include "comm/posix/process.h"

namespace fsdp {
namespace {

using std::chrono::milliseconds, std::chrono::steady_clock;

// Shortest time for which the rank that hosts the store waits for the others to read the verdict.
constexpr milliseconds kLeastFarewell{3000};
// Time that a call to the store may take beyond the time in which a rank must answer.
constexpr milliseconds kStoreTime{2000};

std::string report_key(int rank) { return str_cat("report/", rank); }
std::string told_key(int rank) { return str_cat("told/", rank); }

}  // namespace

// Note [Roll call]
// The keys, all under the group's prefix:
//   alarm       the first rank whose collective failed: the judge
//   report/R    rank R's answer, or that it has destroyed its process group; a rank without an answer is lost
//   answers     the number of ranks that have answered or left
//   verdict     set once; every rank throws it
//   told/R      rank R has read the verdict or has left
// The rank that answers last decides, or the judge when the time to answer is over. If the judge is lost before,
// any other rank whose collective failed decides.
// Before the rank that hosts the store throws, it waits until the others have read the verdict, a few seconds at most:
// its program may end because of the error, and then the verdict would be lost with the store. A rank that hears that
// another rank is gone publishes the same verdict in all its process groups, including the one of all ranks. So ranks
// that share no other process group with it name the lost rank too.

std::shared_ptr<RollCall> RollCall::start(const Alarm::Connect& connect, Ranks ranks, RollCallOptions options,
                                          int beginning) {
  options.alarm->start(connect, ranks);
  auto store = c10::make_intrusive<c10d::PrefixStore>(str_cat("roll_call/", beginning), connect());
  std::shared_ptr<RollCall> call(new RollCall(std::move(store), std::move(ranks), std::move(options)));
  call->options_.alarm->add(call);
  call->look();  // another rank may have rung before this roll call was added
  return call;
}

RollCall::RollCall(c10::intrusive_ptr<c10d::Store> store, Ranks ranks, RollCallOptions options)
    : store_(std::move(store)), ranks_(std::move(ranks)), options_(std::move(options)) {
  store_->setTimeout(options_.answer_time + kStoreTime);
}

void RollCall::enroll(std::weak_ptr<Queue> queue) {
  const MutexLock lock(mutex_);
  queues_.push_back(std::move(queue));
}

Verdict RollCall::alarm(Cause cause, int waiting_for, const std::string& operation, const std::string& detail) {
  const Report report{cause, waiting_for, operations(), str_cat("rank ", ranks_.name(), "'s ", operation), detail};
  return verdict_after(
      [&] {
        const std::string own = str_cat(ranks_.rank);
        const bool is_judge = store_->compareSet("alarm", "", own) == own;
        const bool is_last = answer(report);
        if (is_judge) ring();
        MutexLock lock(mutex_);
        const auto patience = is_last ? milliseconds(0) : is_judge ? options_.answer_time : 2 * options_.answer_time;
        changed_.wait_for(lock, patience, [&]() FSDP_REQUIRES(mutex_) { return verdict_.has_value(); });
        lock.unlock();
        if (!known()) publish(decide_by_reports());
      },
      waiting_for);
}

Verdict RollCall::pronounce(const Verdict& verdict) {
  return verdict_after([&] { publish(verdict); });
}

// Runs `act`, which makes a verdict known unless the store is gone, and returns the verdict that holds. If the store is
// gone and the process of the rank that this rank waits for is stopped, that rank is to blame: the process that hosted
// the store may have ended because it needed nothing more from the others.
Verdict RollCall::verdict_after(const std::function<void()>& act, int waiting_for) {
  try {
    act();
  } catch (const std::exception& error) {
    const std::string last = " This rank's last operations: " + operations() + '.';
    const int name = waiting_for < 0 ? -1 : ranks_.name_of(waiting_for);
    const auto neighbour = options_.neighbours.find(name);
    if (neighbour != options_.neighbours.end() && Process(neighbour->second).is_stopped())
      end_operations({Verdict::Kind::kPeerLost, name,
                      str_cat("rank ", name, " is lost: its process is stopped.", last, kLookAtLost)});
    else
      end_operations(store_lost(ranks_.name(), options_.store_in_rank_0, first_line(error.what()), last));
  }
  return *verdict();
}

std::optional<Verdict> RollCall::verdict() {
  const auto verdict = known();
  if (verdict && options_.store_in_rank_0 && ranks_.name() == 0)
    std::call_once(others_follow_, [&] {
      pass_on(*verdict);  // the alarm's thread may not have passed it on yet
      const auto end = steady_clock::now() + std::max(options_.answer_time, kLeastFarewell);
      options_.alarm->tell([&](const RollCall& call) { call.wait_until_told(end); });
    });
  return verdict;
}

std::optional<Verdict> RollCall::known() const {
  const MutexLock lock(mutex_);
  return verdict_;
}

// Returns to every caller only once the store knows that this rank leaves, because the process may then end. If the
// store is gone, no rank is left to tell.
void RollCall::leave() {
  if (process_ != getpid()) return;
  std::call_once(leaves_, [this] {
    if (known()) return;
    try_to([this] {
      const bool is_last = answer({Cause::kLeft, -1, "left the process group; before that: " + operations(), {}, {}});
      store_->set(told_key(ranks_.rank), "1");
      if (is_last && store_->check({"alarm"})) publish(decide_by_reports());
    });
  });
}

// A store that is gone is not an error here; it matters only when a collective fails.
void RollCall::look() {
  if (known()) return;
  try_to([this] {
    if (store_->check({"verdict"})) return conclude(decode<Verdict>(store_->get_to_str("verdict")));
    if (!store_->check({"alarm"})) return;
    Report report{Cause::kNone, -1, operations(), {}, {}};
    for (const auto& queue : queues()) report.waiting_for = std::max(report.waiting_for, queue->waiting_for());
    if (answer(report)) publish(decide_by_reports());
  });
}

// Answers once. Returns whether this was the last rank's answer.
bool RollCall::answer(const Report& report) {
  if (answered_.exchange(true)) return false;
  store_->set(report_key(ranks_.rank), encode(report));
  return store_->add("answers", 1) == ranks_.world_size;
}

void RollCall::ring() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < ranks_.world_size; ++rank)
    if (rank != ranks_.rank) ranks.push_back(ranks_.name_of(rank));
  options_.alarm->ring(ranks);
}

// Writes the verdict to the store unless another verdict is there, and makes the one in the store known. The rank that
// wrote it rings the others.
void RollCall::publish(const Verdict& verdict) {
  const std::string own = encode(verdict), holds = store_->compareSet("verdict", "", own);
  conclude(decode<Verdict>(holds));
  if (holds == own) ring();
}

void RollCall::conclude(const Verdict& verdict) {
  end_operations(verdict);
  pass_on(verdict);
  store_->set(told_key(ranks_.rank), "1");
}

// Publishes the verdict in this rank's other process groups if it says that a rank is gone.
void RollCall::pass_on(const Verdict& verdict) const {
  if (!verdict.is_gone) return;
  options_.alarm->tell([&](RollCall& call) {
    if (!call.known()) try_to([&] { call.publish(verdict); });
  });
}

// Makes the verdict known on this rank and ends the waits of its queues.
void RollCall::end_operations(const Verdict& verdict) {
  {
    const MutexLock lock(mutex_);
    if (!verdict_) verdict_ = verdict;
    changed_.notify_all();
  }
  for (const auto& queue : queues()) queue->interrupt();
}

Verdict RollCall::decide_by_reports() {
  std::vector<std::optional<Report>> reports(static_cast<size_t>(ranks_.world_size));
  for (int rank = 0; rank < ranks_.world_size; ++rank)
    if (store_->check({report_key(rank)})) reports[rank] = decode<Report>(store_->get_to_str(report_key(rank)));
  return decide(ranks_, reports, "did not answer within " + in_seconds(options_.answer_time));
}

void RollCall::wait_until_told(steady_clock::time_point end) const {
  const auto verdict = known();
  if (!verdict) return;
  std::vector<std::string> keys;
  for (int rank = 0; rank < ranks_.world_size; ++rank)
    if (rank != ranks_.rank && ranks_.name_of(rank) != verdict->rank) keys.push_back(told_key(rank));
  const auto left = std::chrono::ceil<milliseconds>(end - steady_clock::now());
  // A rank that is gone does not read the verdict, so a timeout is ignored.
  if (!keys.empty()) try_to([&] { store_->wait(keys, std::max(milliseconds(1), left)); });
}

std::string RollCall::operations() const {
  std::string text;
  for (const auto& queue : queues()) {
    const std::string status = queue->status();
    if (!status.empty()) text += (text.empty() ? "" : ", ") + status;
  }
  return text.empty() ? "none yet" : text;
}

std::vector<std::shared_ptr<RollCall::Queue>> RollCall::queues() const {
  const MutexLock lock(mutex_);
  std::vector<std::shared_ptr<Queue>> all;
  for (const auto& weak : queues_)
    if (auto queue = weak.lock()) all.push_back(std::move(queue));
  return all;
}

}  // namespace fsdp
