#include "comm/shm/collectives.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <fsdp/error.h>

#include <algorithm>
#include <cstring>

namespace fsdp::shm {
namespace {

std::string message_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

class Collectives::Started {
 public:
  Started(std::shared_ptr<Rounds> rounds, Fingerprint fingerprint, std::vector<uint8_t> votes, Steps steps)
      : rounds_(std::move(rounds)),
        fingerprint_(fingerprint),
        operation_(describe(fingerprint)),
        votes_(std::move(votes)),
        steps_(std::move(steps)) {}

  std::span<const uint8_t> votes() const { return votes_; }
  const std::string& operation() const { return operation_; }
  /// Nobody wants the result any more: lets tensors go that peers do not need.
  void abandon() {
    if (is_all_posted()) steps_ = {.count = steps_.count};
  }

  /// It will never be done.
  void drop() { is_dropped_ = true; }
  bool is_dropped() const { return is_dropped_; }

  bool is_done() const { return read_ == steps_.count; }
  bool is_posted() const { return posted_ > 0; }
  /// Whether the next round may be posted, as far as this collective is concerned.
  bool wants_to_post() const { return posted_ < steps_.count && (steps_.overlap || posted_ == read_); }
  bool is_all_posted() const { return posted_ == steps_.count; }
  bool has_unread() const { return read_ < posted_; }
  Rounds& rounds() const { return *rounds_; }

  void post(std::chrono::milliseconds& waited) {
    std::byte* slot = rounds_->open(waited);
    if (posted_ == 0 && !fingerprint_.votes_fit()) {
      const auto bits = pack_votes(votes_);
      std::memcpy(slot, bits.data(), bits.size());
    }
    if (steps_.write) steps_.write(posted_, slot + vote_bytes_in_slot(votes_.size()));
    rounds_->post(fingerprint_);
    ++posted_;
  }

  void read(std::chrono::milliseconds& waited) {
    rounds_->meet(waited);
    if (read_ == 0) collect_votes();
    if (steps_.read && !is_voted_down(votes_)) steps_.read(read_, Slots(*rounds_, vote_bytes_in_slot(votes_.size())));
    rounds_->close();
    if (++read_ == steps_.count) steps_ = {.count = steps_.count};  // lets tensors go
  }

 private:
  void collect_votes() {
    for (size_t i = 0; i < rounds_->members().size(); ++i) {
      const auto& fingerprint = rounds_->fingerprint_of(i);
      const auto* in_slot = reinterpret_cast<const uint8_t*>(rounds_->slot_of(i));
      if (fingerprint.votes_fit())
        merge_votes(votes_, fingerprint.votes);
      else
        merge_votes(votes_, {in_slot, (votes_.size() + 7) / 8});
    }
  }

  const std::shared_ptr<Rounds> rounds_;
  const Fingerprint fingerprint_;
  const std::string operation_;
  std::vector<uint8_t> votes_;
  Steps steps_;
  int64_t posted_ = 0, read_ = 0;
  bool is_dropped_ = false;
};

// What the caller holds.
class Collectives::Handle : public Work {
 public:
  Handle(std::weak_ptr<Collectives> owner, std::shared_ptr<Started> started)
      : owner_(std::move(owner)), started_(std::move(started)) {}
  ~Handle() override { started_->abandon(); }

  void wait() override {
    if (started_->is_done()) return;
    const auto owner = owner_.lock();
    if (!owner) throw Error("[fsdp] " + started_->operation() + ": the process group was destroyed before it ended.");
    owner->wait_for(*started_);
  }
  std::span<const uint8_t> votes() const override { return started_->votes(); }

 private:
  const std::weak_ptr<Collectives> owner_;
  const std::shared_ptr<Started> started_;
};

size_t vote_bytes_in_slot(size_t votes) {
  return votes <= 8 * Fingerprint::kInlineVoteBytes ? 0 : ((votes + 7) / 8 + 63) / 64 * 64;
}

std::shared_ptr<Work> Collectives::start(std::shared_ptr<Rounds> rounds, Fingerprint fingerprint,
                                         std::vector<uint8_t> votes, Steps steps, bool waits) {
  fingerprint.sequence = rounds->next_sequence();
  auto work = std::make_shared<Started>(std::move(rounds), fingerprint, std::move(votes), std::move(steps));
  guarded([&] {
    peers_->announce(work->operation());
    peers_->check();
    if (queue_.empty()) waited_ = {};
    queue_.push_back(work);
    while (waits && !work->is_posted()) advance();
    go_on();
  });
  return std::make_shared<Handle>(weak_from_this(), std::move(work));
}

void Collectives::go_on() {
  while (post_next(/*block=*/false) || read_next(/*block=*/false)) {
  }
}

void Collectives::progress() {
  if (!is_active_ && !failure_ && !queue_.empty()) guarded([&] { go_on(); });
}

void Collectives::drop() {
  for (const auto& work : queue_) work->drop();
  queue_.clear();
}

void Collectives::finish_all() {
  guarded([&] {
    while (!queue_.empty()) advance();
  });
}

void Collectives::wait_for(Started& work) {
  if (!failure_ && work.is_dropped())
    throw Error("[fsdp] " + work.operation() + " was dropped: the ranks started over.");
  guarded([&] {
    if (!work.is_done()) peers_->announce(queue_.front()->operation());
    while (!work.is_done()) advance();
  });
}

void Collectives::guarded(const std::function<void()>& act) {
  if (failure_) std::rethrow_exception(failure_);
  // Collectives write into parameters' memory: no graph, no version bumps.
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  is_active_ = true;
  try {
    act();
    is_active_ = false;
  } catch (...) {
    is_active_ = false;
    failure_ = std::current_exception();
    peers_->tell(message_of(failure_));
    drop();
    throw;
  }
}

void Collectives::advance() {
  if (post_next(/*block=*/false) || read_next(/*block=*/true)) return;
  post_next(/*block=*/true);
}

// Posts a round of the first collective that is not all posted.
bool Collectives::post_next(bool block) {
  const auto next = std::find_if(queue_.begin(), queue_.end(), [](const auto& work) { return !work->is_all_posted(); });
  if (next == queue_.end() || !(*next)->wants_to_post() || (*next)->rounds().in_flight() == 2) return false;
  if (!block && !(*next)->rounds().can_open()) return false;
  (*next)->post(waited_);
  return true;
}

// Reads a round of the oldest collective.
bool Collectives::read_next(bool block) {
  if (queue_.empty() || !queue_.front()->has_unread()) return false;
  const auto front = queue_.front();
  if (!block && !front->rounds().can_meet()) return false;
  front->read(waited_);
  if (front->is_done()) {
    queue_.pop_front();
    waited_ = {};
  }
  if (queue_.empty()) peers_->announce_end();
  return true;
}

}  // namespace fsdp::shm
