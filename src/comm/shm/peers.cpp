#include "comm/shm/peers.h"

#include <fsdp/error.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <utility>

#include "comm/core/check.h"
#include "comm/core/fault_point.h"
#include "comm/core/store_message.h"

namespace fsdp::shm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds, std::chrono::nanoseconds;

// Time for which a thread spins before it sleeps: a peer that is almost ready arrives before a system call would
// return.
constexpr std::chrono::microseconds kSpin{50};
// A waiting thread does not hear the bells of other Peers of its rank. While these have operations in flight, it sleeps
// at most this long.
constexpr milliseconds kGlance{1};
// The longest sleep otherwise. After each sleep the thread checks whether the wait has become useless.
constexpr milliseconds kLook{100};

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);

// Sleeps while `word` in shared memory is `seen`, until `wake_all` or for at most `limit`. May return early.
void sleep_while(const std::atomic<uint32_t>& word, uint32_t seen, milliseconds limit) {
  const timespec time{limit.count() / 1000, (limit.count() % 1000) * 1'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0);
}

void wake_all(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool spin_until(const std::function<bool()>& ready) {
  const auto end = Clock::now() + kSpin;
  while (Clock::now() < end)
    if (ready()) return true;
  return false;
}

bool has_core_for_each(int ranks) {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 && CPU_COUNT(&cores) >= ranks;
}

}  // namespace

Descriptor make_host_page(int world_size, const std::string& name) {
  auto page = make_segment(name, HostPage::bytes(world_size));
  if (prctl(PR_GET_DUMPABLE) != 1)
    throw Obstacle(
        "this process is not dumpable (PR_SET_DUMPABLE, prctl(2)), so other processes cannot find its memory in /proc");
  if (find_segment(getpid(), name).is_open()) return page;
  throw Obstacle(
      "the shared memory of a process cannot be found in /proc. Perhaps a sandbox forbids it; use the backend "
      "\"gloo\"");
}

// While it lives, other ranks see that this rank waits for `peer`. Constructed and destroyed under the lock.
class Peers::WaitingThread {
 public:
  WaitingThread(Peers& peers, int peer, nanoseconds& waited) : peers_(peers), peer_(peer), waited_(waited) {
    peers_.awaited_.push_back(peer_);
    ++peers_.status(peer_).sleepers;
    peers_.status(peers_.rank()).waits_for = peer_ + 1;
  }
  ~WaitingThread() {
    count();
    peers_.awaited_.erase(std::ranges::find(peers_.awaited_, peer_));
    --peers_.status(peer_).sleepers;
    peers_.status(peers_.rank()).waits_for = peers_.awaited_.empty() ? 0 : peers_.awaited_.back() + 1;
  }
  WaitingThread(const WaitingThread&) = delete;
  WaitingThread& operator=(const WaitingThread&) = delete;

  /// Returns a verdict if the wait is useless, because the peer has left or the timeout has passed. Call it after each
  /// sleep.
  std::optional<Verdict> look() {
    count();
    const bool has_left = peers_.has_left(peer_);
    if (!has_left && waited_ < peers_.timeout_) return std::nullopt;
    auto reports = peers_.reports();
    auto& own = *reports[peers_.rank()];
    own.cause = has_left ? Cause::kTransport : Cause::kTimeout;
    own.waiting_for = peer_;  // other threads of this rank may wait for other ranks
    own.failed_operation = peers_.operation();
    return decide(peers_.ranks_, reports, has_left ? "ended" : "did not arrive within " + in_seconds(peers_.timeout_));
  }

 private:
  // Counts the time since the last look as waiting, but at most 2 * kLook: the process may have been stopped.
  void count() {
    const auto now = Clock::now();
    waited_ += std::min<nanoseconds>(now - last_look_, 2 * kLook);
    last_look_ = now;
  }

  Peers& peers_;
  const int peer_;
  nanoseconds& waited_;
  Clock::time_point last_look_ = Clock::now();
};

Peers::Peers(const std::vector<Contact>& contacts, Ranks ranks, milliseconds timeout,
             std::shared_ptr<OwnRank> its_own_rank)
    : own_rank(std::move(its_own_rank)),
      first_(contacts.front()),
      ranks_(std::move(ranks)),
      timeout_(timeout),
      may_spin_(has_core_for_each(ranks_.world_size)) {
  for (const auto& contact : contacts) processes_.emplace_back(contact.process);
  Descriptor page;
  try {
    page = find_segment(first_.process, first_.page);
  } catch (const Obstacle&) {
    if (!processes_.front().has_ended()) throw;  // a process that has ended has no descriptors in /proc
  }
  if (!page.is_open())
    throw PeerLost(ranks_.name_of(0), str_cat(ranks_.where("init_process_group"), "rank ", ranks_.name_of(0),
                                              " has ended. Look at its output, then start all ranks again."));
  memory_ = map_segment(page);
  page_ = reinterpret_cast<HostPage*>(memory_.get());
  const MutexLock lock(own_rank->mutex);
  announce("init_process_group");
  meet();
  has_joined_ = true;
  announce_end();
}

Peers::~Peers() {
  if (!is_own_process()) return;
  status(rank()).has_left = 1;
  ring();
}

void Peers::announce(const std::string& operation) {
  status(rank()).operation.set(operation);
  status(rank()).is_busy = 1;
}

// Returns what every rank of this host does; nothing for a rank whose process does not run.
std::vector<std::optional<Report>> Peers::reports() const {
  std::vector<std::optional<Report>> reports;
  for (int rank = 0; rank < world_size(); ++rank) {
    const auto& its = status(rank);
    Report report;
    report.cause = its.has_left.load() != 0 ? Cause::kLeft : Cause::kNone;
    report.waiting_for = its.waits_for.load() - 1;
    report.operations = its.operation.get();
    if (report.operations.empty())
      report.operations = "none";
    else if (report.waiting_for >= 0)
      report.operations += str_cat(", waiting for rank ", ranks_.name_of(report.waiting_for));
    else
      report.operations += its.is_busy.load() != 0 ? ", in progress" : ", done";
    const bool answers = rank == this->rank() || report.cause == Cause::kLeft || processes_[rank].is_running();
    reports.push_back(answers ? std::optional(std::move(report)) : std::nullopt);
  }
  return reports;
}

void Peers::ring() {
  auto& own = status(rank());
  own.bell.fetch_add(1);
  if (own.sleepers.load() > 0) wake_all(own.bell);
}

void Peers::wake_threads() {
  for (const int peer : awaited_) {
    ++status(peer).bell;
    wake_all(status(peer).bell);
  }
}

// Returns the failure that ends every collective, if there is one. While the ranks start over, the recorded failure
// does not count, but a loss that this rank has found does.
std::optional<Verdict> Peers::failure() const {
  if (lost_ || is_starting_over_) return lost_;
  const int failed = page_->failed.load(std::memory_order_acquire);
  return failed == 0 ? std::nullopt : std::optional(decode<Verdict>(status(failed - 1).verdict.get()));
}

// Records the verdict unless another one is recorded.
void Peers::record(Verdict verdict) {
  if (page_->failed.load() != 0) return;
  verdict.text.resize(std::min<size_t>(verdict.text.size(), 2000));
  status(rank()).verdict.set(encode(verdict));
  fault_point("verdict written");
  int32_t none = 0;
  page_->failed.compare_exchange_strong(none, rank() + 1);
}

void Peers::check() const {
  if (is_starting_over_) raise(starts_over(ranks_, last_operations(ranks_, reports())), ranks_, operation());
  if (const auto verdict = failure()) raise(*verdict, ranks_, operation());
}

// A rank that does not come when all ranks meet counts as lost.
void Peers::fail(Verdict verdict) {
  if (is_starting_over_ || !has_joined_) verdict.kind = Verdict::Kind::kPeerLost;
  if (is_starting_over_) lost_ = verdict;
  if (!lost_) record(verdict);
  raise(failure().value_or(verdict), ranks_, operation());
}

void Peers::tell(const std::string& operation, const std::string& error, std::optional<int> lost) {
  if (is_starting_over_ || failure()) return;
  record(failed_alone(ranks_, operation, error, lost));
  ring();
  wake_threads();
}

void Peers::wait_for(int peer, const std::function<bool()>& ready, nanoseconds& waited) {
  if (ready() || (may_spin_ && spin_until(ready))) return;
  const auto& bell = status(peer).bell;
  uint32_t heard = bell.load();
  make_progress();  // before others see that this rank waits, because they may wait for this progress
  WaitingThread waiting(*this, peer, waited);
  const uint64_t meetings = meetings_;
  while (true) {
    if (ready()) return;
    {
      const bool others_may_advance = std::ranges::any_of(
          own_rank->queues, [this](const Queue* queue) { return &queue->peers() != this && queue->is_under_way(); });
      const auto limit = others_may_advance ? kGlance : kLook;
      const RankLock::ScopedRelease others_go_on(own_rank->mutex);
      sleep_while(bell, heard, limit);
    }
    if (ready()) return;  // an operation that is ready does not fail because another one fails
    heard = bell.load();
    make_progress();
    if (ready()) return;
    if (meetings_ != meetings)  // another thread of this rank dropped the operation
      throw Error(prefix() +
                  "this operation was dropped, because the ranks started over after an exception. Start the iteration "
                  "again on every rank.");
    const auto verdict = waiting.look();
    // The order of these checks matters: a rank that ends because of a failure has recorded the failure first, and an
    // operation that was ready before a failure is ready on every rank.
    const auto failed = failure();
    if (ready()) return;
    if (failed) raise(*failed, ranks_, operation());
    if (verdict) fail(*verdict);
  }
}

void Peers::start_over() {
  const MutexLock lock(own_rank->mutex);
  if (const auto before = failure(); before && before->kind == Verdict::Kind::kPeerLost)
    raise(*before, ranks_, operation());
  announce("starting over");
  record(starts_over(ranks_, last_operations(ranks_, reports())));
  is_starting_over_ = true;
  const std::unique_ptr<bool, void (*)(bool*)> until_the_end(&is_starting_over_, [](bool* is) { *is = false; });
  for (auto* queue : own_rank->queues)
    if (&queue->peers() == this) queue->drop();
  meet();
  // Every rank is here, and none continues before the next meeting.
  fault_point("starting over");
  segments_ = meetings_ << 32;  // no earlier segment has such a number
  for (auto* queue : own_rank->queues)
    if (&queue->peers() == this) queue->begin_anew();
  if (rank() == 0) page_->failed = 0;
  meet();
  announce_end();
  blame(ranks_.name(), -1);
}

// Sets this rank's `count` to `number` and returns when the counts of all ranks have reached it.
void Peers::meet(std::atomic<uint64_t> RankStatus::* count, uint64_t number, nanoseconds& waited) {
  (status(rank()).*count).store(number);
  ring();
  for (int peer = 0; peer < world_size(); ++peer)
    if (peer != rank()) wait_for(peer, [&] { return (status(peer).*count).load() >= number; }, waited);
}

// Advances all queues of this rank. A failure of a queue over other Peers does not end the wait here: the queue keeps
// the error and throws it to its own callers. The loop uses an index because queues may be added meanwhile.
void Peers::make_progress() {
  for (size_t i = 0; i < own_rank->queues.size(); ++i) {
    auto& queue = *own_rank->queues[i];
    if (&queue.peers() == this)
      queue.progress();
    else
      try_to([&] { queue.progress(); });
  }
}

// Rank 0 makes the segment, and the others open it. Then every rank sees whether all have mapped it.
std::shared_ptr<std::byte> Peers::share(size_t bytes, const std::string& purpose, Paging paging, size_t head) {
  const MutexLock lock(own_rank->mutex);
  std::unique_lock turn(sharing_, std::defer_lock);
  {
    const RankLock::ScopedRelease others_go_on(own_rank->mutex);
    turn.lock();
  }
  announce("sharing memory for " + purpose);
  check();
  fault_point("segment wanted");
  const uint64_t number = ++segments_;
  const std::string name = str_cat(first_.page, ':', number);
  nanoseconds waited{0};
  Descriptor segment;
  std::shared_ptr<std::byte> memory;
  std::string error;
  try {
    if (rank() != 0) wait_for(0, [&] { return status(0).segments.load() >= number; }, waited);
    segment = rank() == 0 ? make_segment(name, bytes, paging) : find_segment(first_.process, name);
    memory = map_segment(segment, bytes);
    take_pages(memory.get(), head);
  } catch (const Obstacle& obstacle) {
    error = str_cat("rank ", ranks_.name(), " cannot share memory for ", purpose, ": ", obstacle.what());
  }
  fault_point("segment mapped");
  // Two alternating texts suffice: before a rank writes these again, it meets all ranks for the next segment, and by
  // then every rank has read these.
  const auto error_of = [&](int rank) -> auto& { return status(rank).errors[number % 2]; };
  error_of(rank()).set(error);
  meet(&RankStatus::segments, number, waited);
  fault_point("segment agreed");
  announce_end();
  for (int rank = 0; rank < world_size(); ++rank)
    if (const auto its = error_of(rank).get(); !its.empty()) throw Error(prefix() + its + '.');
  return memory;
}

void Peers::take_pages_of(std::byte* begin, size_t bytes) const {
  try {
    take_pages(begin, bytes);
  } catch (const Obstacle& obstacle) {
    throw Error(prefix() + obstacle.what() + '.');
  }
}

}  // namespace fsdp::shm
