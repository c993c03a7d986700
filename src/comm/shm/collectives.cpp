#include "comm/shm/collectives.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <fsdp/error.h>

#include <algorithm>
#include <utility>

#include "comm/core/check.h"
#include "comm/core/fault_point.h"

namespace fsdp::shm {

// One collective or message, and the Work that its caller holds.
class Collectives::Operation : public Work, public std::enable_shared_from_this<Operation> {
 public:
  Operation(std::weak_ptr<Collectives> owner, const Fingerprint& its_fingerprint, const Ranks& ranks, Steps its_steps)
      : fingerprint(its_fingerprint),
        description(describe(fingerprint, ranks)),
        steps(std::move(its_steps)),
        span(collective_span(ranks, fingerprint)),
        owner_(std::move(owner)) {}

  void wait() override {
    if (const auto owner = owner_.lock()) return owner->wait_for(*this);
    if (!is_done())
      throw Error("[fsdp] " + description +
                  ": the process group was destroyed before this operation ended. Call wait() first.");
  }
  bool lets_others_go_on() const override { return true; }
  void then(Next next) override {
    if (const auto owner = owner_.lock()) owner->then(shared_from_this(), std::move(next));
  }

  /// Ends the operation without a result.
  void drop() {
    is_dropped_ = true;
    next_ = nullptr;
    span.end(/*has_failed=*/true);
  }
  /// Returns whether the operation is done or dropped.
  bool is_over() const { return is_dropped_ || is_done(); }

  bool is_done() const { return read == steps.count; }
  bool is_all_posted() const { return posted == steps.count; }
  bool has_unread() const { return read < posted; }

  void end_round() {
    if (++read < steps.count) return;
    steps = {.count = steps.count};  // releases the tensors
    span.end();
    if (const auto next = std::exchange(next_, nullptr)) next();
  }
  /// Stores `next` and returns true if the operation is in flight. Otherwise returns false, after calling `next` if the
  /// operation is done.
  bool follow(Next next) {
    if (is_done()) next();
    if (is_over()) return false;
    next_ = std::move(next);
    return true;
  }

  const Fingerprint fingerprint;
  const std::string description;
  Steps steps;
  Span span;
  int64_t posted = 0, read = 0;  // rounds that this rank has posted and read

 private:
  const std::weak_ptr<Collectives> owner_;
  bool is_dropped_ = false;
  Next next_;
};

Collectives::Collectives(std::shared_ptr<Peers> peers, std::vector<int> members, std::shared_ptr<std::byte> memory,
                         size_t slot_bytes)
    : peers_(std::move(peers)),
      members_(std::move(members)),
      own_(static_cast<size_t>(std::ranges::find(members_, peers_->rank()) - members_.begin())),
      memory_(std::move(memory)),
      posts_(reinterpret_cast<Post*>(memory_.get())),
      slots_(memory_.get() + head_bytes(members_.size())),
      slot_bytes_(slot_bytes) {
  const MutexLock lock(peers_->own_rank->mutex);
  peers_->own_rank->queues.push_back(this);
}

// A forked child must not take the lock, which may stay locked there for ever. It leaks the futures in `followed_`,
// whose destructors would join threads that the child does not have.
Collectives::~Collectives() {
  if (peers_->is_own_process()) {
    const MutexLock lock(peers_->own_rank->mutex);
    std::erase(peers_->own_rank->queues, this);
    drop();
  } else if (!followed_.empty()) {
    static_cast<void>(new auto(std::move(followed_)));
  }
}

std::shared_ptr<Work> Collectives::start(Fingerprint fingerprint, Steps steps) {
  const MutexLock lock(peers_->own_rank->mutex);
  fingerprint.sequence = ++sequence_;
  auto work = std::make_shared<Operation>(weak_from_this(), fingerprint, peers_->ranks(), std::move(steps));
  guarded([&]() FSDP_REQUIRES(peers_->own_rank->mutex) {
    peers_->announce(work->description);
    peers_->check();
    queue_.push_back(work);
    advance();
  });
  return work;
}

void Collectives::advance() {
  while (post_next() || read_next()) {
  }
}

void Collectives::progress() {
  const MutexLock lock(peers_->own_rank->mutex);
  if (!failure_ && !queue_.empty()) guarded([&]() FSDP_REQUIRES(peers_->own_rank->mutex) { advance(); });
}

void Collectives::drop() {
  for (const auto& work : queue_) work->drop();
  queue_.clear();
  peers_->wake_threads();
}

void Collectives::finish_all() {
  const MutexLock lock(peers_->own_rank->mutex);
  while (!queue_.empty()) wait_for(*std::shared_ptr(queue_.back()));
}

void Collectives::wait_for(Operation& work) {
  const MutexLock lock(peers_->own_rank->mutex);
  if (!work.is_over())
    guarded([&]() FSDP_REQUIRES(peers_->own_rank->mutex) {
      peers_->announce(queue_.front()->description);
      advance_until([&] { return work.is_over(); });
    });
  if (work.is_done()) return;
  if (failure_) std::rethrow_exception(failure_);
  throw Error(
      "[fsdp] " + work.description +
      " was dropped, because the ranks started over after an exception. Start the iteration again on every rank.");
}

void Collectives::then(const std::shared_ptr<Operation>& work, Work::Next next) {
  const MutexLock lock(peers_->own_rank->mutex);
  const bool is_to_come = work->follow(std::move(next));
  while (!followed_.empty() && followed_.front().wait_for(std::chrono::seconds(0)) == std::future_status::ready)
    followed_.pop_front();
  if (is_to_come) followed_.push_back(std::async(std::launch::async, [this, work] { wait_for(*work); }));
}

void Collectives::guarded(const std::function<void()>& act) {
  if (failure_) std::rethrow_exception(failure_);
  // Collectives write into parameters' memory: autograd must not record this, and version counters must not change.
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  try {
    act();
  } catch (const std::exception& error) {
    failure_ = std::current_exception();
    peers_->tell(peers_->operation(), what_without_backtrace(error));
    drop();
    throw;
  }
}

// See Note [Waiting threads]. The timeout begins anew whenever another operation becomes the oldest.
void Collectives::advance_until(const std::function<bool()>& is_over) {
  std::shared_ptr<Operation> oldest;
  std::chrono::nanoseconds waited{0};
  while (!is_over()) {
    if (post_next() || read_next()) continue;
    if (oldest != queue_.front()) {
      oldest = queue_.front();
      waited = {};
    }
    wait_for_round(oldest->has_unread(), is_over, waited);
  }
}

// If `to_read`, waits for a member that has not posted the oldest round in flight; otherwise for a member that keeps
// this rank from posting its next round. Also returns when `is_over`. While this thread sleeps, other threads can go on
// to later rounds.
void Collectives::wait_for_round(bool to_read, const std::function<bool()>& is_over, std::chrono::nanoseconds& waited) {
  for (size_t i = 0; i < members_.size(); ++i) {
    const auto has_come = [&, round = to_read ? closed_ : posted_] {
      return to_read ? has_posted(i, round) : has_read(i, round);
    };
    if (!has_come()) return peers_->wait_for(members_[i], [&] { return is_over() || has_come(); }, waited);
    if (to_read) compare(i);
  }
}

void Collectives::compare(size_t member) {
  if (member == own_) return;
  const auto fingerprint_of = [&, slot = closed_ % 2](size_t i) -> auto& { return posts_[i].fingerprints[slot]; };
  const auto &mine = fingerprint_of(own_), &theirs = fingerprint_of(member);
  const std::string found = difference(mine, members_[own_], theirs, members_[member]);
  if (!found.empty()) peers_->fail(disagreement(peers_->ranks(), mine, members_[member], theirs, found));
}

// Posts the next round of the first operation that is not all posted. Returns false if that is not possible yet.
bool Collectives::post_next() {
  const auto next = std::ranges::find_if(queue_, [](const auto& work) { return !work->is_all_posted(); });
  if (next == queue_.end() || posted_ - closed_ == 2 || (!(*next)->steps.overlap && (*next)->has_unread()))
    return false;
  for (size_t i = 0; i < members_.size(); ++i)
    if (!has_read(i, posted_)) return false;
  auto& work = **next;
  fault_point("round open");
  auto* memory = slot(own_, posted_);
  size_t& taken = taken_[posted_ % 2];
  if (work.steps.slot_bytes > taken) peers_->take_pages_of(memory, work.steps.slot_bytes);
  taken = std::max(taken, work.steps.slot_bytes);
  if (work.steps.write) work.steps.write(work.posted, memory);
  posts_[own_].fingerprints[posted_ % 2] = work.fingerprint;
  fault_point("round written");
  posts_[own_].posted.store(++posted_, std::memory_order_release);
  fault_point("round posted");
  peers_->ring();
  ++work.posted;
  return true;
}

// Reads the next round of the oldest operation. Returns false if that is not possible yet.
bool Collectives::read_next() {
  if (queue_.empty() || !queue_.front()->has_unread()) return false;
  for (size_t i = 0; i < members_.size(); ++i)
    if (!has_posted(i, closed_)) return false;
  for (size_t i = 0; i < members_.size(); ++i) compare(i);
  fault_point("round met");
  const auto work = queue_.front();
  if (work->steps.read)
    work->steps.read(work->read, [this, round = closed_](size_t member) { return slot(member, round); });
  fault_point("round read");
  posts_[own_].closed.store(++closed_, std::memory_order_release);
  fault_point("round closed");
  peers_->ring();
  work->end_round();
  if (work->is_done()) {
    queue_.pop_front();
    peers_->wake_threads();
  }
  if (queue_.empty()) peers_->announce_end();
  return true;
}

void Collectives::begin_anew() {
  failure_ = nullptr;
  posted_ = closed_ = sequence_ = 0;
  posts_[own_].posted = 0;
  posts_[own_].closed = 0;
}

}  // namespace fsdp::shm
