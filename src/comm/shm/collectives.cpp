#include "comm/shm/collectives.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <fsdp/error.h>

#include <algorithm>
#include <utility>

#include "comm/core/fingerprint.h"
#include "comm/core/check.h"

namespace fsdp::shm {

class Collectives::Started {
 public:
  Started(Fingerprint fingerprint, const Ranks& ranks, std::string_view order, Steps steps)
      : fingerprint_(fingerprint),
        operation_(describe(fingerprint, ranks)),
        steps_(std::move(steps)),
        span_(collective_span(ranks, fingerprint, order)) {}

  const std::string& operation() const { return operation_; }
  /// Nobody wants the result any more, unless something follows: lets tensors go that peers do not need.
  void abandon() {
    if (is_all_posted() && !next_) steps_ = {.count = steps_.count};
  }

  /// It will never be done.
  void drop() {
    is_dropped_ = true;
    next_ = nullptr;
    span_.end(Stage::kFailed);
  }
  bool is_dropped() const { return is_dropped_; }
  /// Nothing more will become of it.
  bool is_over() const { return is_dropped_ || is_done(); }

  bool is_done() const { return read_ == steps_.count; }
  /// Whether the next round may be posted, as far as this collective is concerned.
  bool wants_to_post() const { return posted_ < steps_.count && (steps_.overlap || posted_ == read_); }
  bool is_all_posted() const { return posted_ == steps_.count; }
  bool has_unread() const { return read_ < posted_; }

  void post(Rounds& rounds) {
    std::byte* slot = rounds.open();
    if (steps_.write) steps_.write(posted_, slot);
    rounds.post(fingerprint_);
    ++posted_;
  }

  void read(Rounds& rounds) {
    rounds.meet();
    if (read_ == 0) span_.reach(Stage::kAgreed);
    if (steps_.read) steps_.read(read_, rounds);
    rounds.close();
    if (++read_ < steps_.count) return;
    steps_ = {.count = steps_.count};  // lets tensors go
    span_.end(Stage::kDone);
    if (const auto next = std::exchange(next_, nullptr)) next();
  }
  void then(Work::Next next) {
    if (is_done())
      next();
    else if (!is_dropped_)
      next_ = std::move(next);
  }

 private:
  const Fingerprint fingerprint_;
  const std::string operation_;
  Steps steps_;
  int64_t posted_ = 0, read_ = 0;
  bool is_dropped_ = false;
  Work::Next next_;
  Span span_;
};

// What the caller holds.
class Collectives::Handle : public Work {
 public:
  Handle(std::weak_ptr<Collectives> owner, std::shared_ptr<Started> started)
      : owner_(std::move(owner)), started_(std::move(started)) {}
  ~Handle() override {
    if (const auto owner = owner_.lock()) owner->abandon(*started_);
  }

  void wait() override {
    if (const auto owner = owner_.lock()) return owner->wait_for(*started_);
    if (!started_->is_done())
      throw Error("[fsdp] " + started_->operation() +
                  ": the process group was destroyed before it ended. Call wait() before.");
  }
  bool lets_others_go_on() const override { return true; }
  void then(Next next) override {
    if (const auto owner = owner_.lock()) owner->then(started_, std::move(next));
  }

 private:
  const std::weak_ptr<Collectives> owner_;
  const std::shared_ptr<Started> started_;
};

Collectives::~Collectives() {
  peers_->remove(*this);
  if (peers_->is_own_process()) {
    const auto lock = peers_->lock();
    drop();
  } else if (!followed_.empty()) {
    static_cast<void>(new auto(std::move(followed_)));  // a child has no such threads, and cannot join them
  }
}

std::shared_ptr<Work> Collectives::start(Fingerprint fingerprint, Steps steps) {
  const auto lock = peers_->lock();
  fingerprint.sequence = rounds_.next_sequence();
  auto work = std::make_shared<Started>(fingerprint, peers_->ranks(), name_, std::move(steps));
  guarded([&] {
    peers_->announce(work->operation());
    peers_->check();
    queue_.push_back(work);
    go_on();
  });
  return std::make_shared<Handle>(weak_from_this(), std::move(work));
}

void Collectives::go_on() {
  while (post_next() || read_next()) {
  }
}

void Collectives::progress() {
  const auto lock = peers_->lock();
  if (!failure_ && !queue_.empty()) guarded([&] { go_on(); });
}

void Collectives::drop() {
  for (const auto& work : queue_) work->drop();
  queue_.clear();
  peers_->wake_threads();
}

void Collectives::finish_all() {
  const auto lock = peers_->lock();
  while (!queue_.empty()) wait_for(*std::shared_ptr(queue_.back()));
}

void Collectives::wait_for(Started& work) {
  const auto lock = peers_->lock();
  if (!work.is_over())
    guarded([&] {
      peers_->announce(queue_.front()->operation());
      advance_until([&] { return work.is_over(); });
    });
  if (work.is_done()) return;
  if (failure_) std::rethrow_exception(failure_);
  throw Error("[fsdp] " + work.operation() +
              " was dropped: the ranks started over. Start the iteration again on every rank.");
}

void Collectives::then(const std::shared_ptr<Started>& work, Work::Next next) {
  const auto lock = peers_->lock();
  work->then(std::move(next));
  while (!followed_.empty() && followed_.front().wait_for(std::chrono::seconds(0)) == std::future_status::ready)
    followed_.pop_front();
  if (!work->is_over()) followed_.push_back(std::async(std::launch::async, [this, work] { wait_for(*work); }));
}

void Collectives::abandon(Started& work) {
  if (!peers_->is_own_process()) return;
  const auto lock = peers_->lock();
  work.abandon();
}

void Collectives::guarded(const std::function<void()>& act) {
  if (failure_) std::rethrow_exception(failure_);
  // Collectives write into parameters' memory: no graph, no version bumps.
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  try {
    act();
  } catch (const std::exception& error) {
    failure_ = std::current_exception();
    peers_->tell(what_without_backtrace(error));
    drop();
    throw;
  }
}

// See Note [Waiting threads]. The timeout is each operation's.
void Collectives::advance_until(const std::function<bool()>& is_over) {
  std::shared_ptr<Started> oldest;
  std::chrono::milliseconds waited{0};
  while (!is_over()) {
    if (post_next() || read_next()) continue;
    if (oldest != queue_.front()) {
      oldest = queue_.front();
      waited = {};
    }
    rounds_.wait(oldest->has_unread(), is_over, waited);
  }
}

// Posts a round of the first collective that is not all posted.
bool Collectives::post_next() {
  const auto next = std::find_if(queue_.begin(), queue_.end(), [](const auto& work) { return !work->is_all_posted(); });
  if (next == queue_.end() || !(*next)->wants_to_post() || rounds_.in_flight() == 2 || !rounds_.can_open())
    return false;
  (*next)->post(rounds_);
  return true;
}

// Reads a round of the oldest collective.
bool Collectives::read_next() {
  if (queue_.empty() || !queue_.front()->has_unread()) return false;
  const auto front = queue_.front();
  if (!rounds_.can_meet()) return false;
  front->read(rounds_);
  if (front->is_done()) {
    queue_.pop_front();
    peers_->wake_threads();
  }
  if (queue_.empty()) peers_->announce_end();
  return true;
}

}  // namespace fsdp::shm
