#include "comm/shm/rounds.h"

#include <algorithm>

#include "comm/core/fault_point.h"

namespace fsdp::shm {

Rounds::Rounds(std::shared_ptr<Peers> peers, std::vector<int> members, std::shared_ptr<std::byte> memory,
               size_t slot_bytes)
    : peers_(std::move(peers)),
      members_(std::move(members)),
      own_(static_cast<size_t>(std::ranges::find(members_, peers_->rank()) - members_.begin())),
      slot_bytes_(slot_bytes),
      memory_(std::move(memory)),
      posts_(reinterpret_cast<Post*>(memory_.get())),
      slots_(memory_.get() + members_.size() * sizeof(Post)) {}

void Rounds::begin_anew() {
  posted_ = closed_ = sequence_ = 0;
  posts_[own_].posted = 0;
  posts_[own_].closed = 0;
}

bool Rounds::can_open() const {
  for (size_t i = 0; i < members_.size(); ++i)
    if (!has_read(i, posted_)) return false;
  return true;
}

// While this thread sleeps, others may go on to later rounds.
void Rounds::wait(bool to_meet, const std::function<bool()>& is_over, std::chrono::milliseconds& waited) {
  for (size_t i = 0; i < members_.size(); ++i) {
    const auto has_come = [&, round = to_meet ? closed_ : posted_] {
      return to_meet ? has_posted(i, round) : has_read(i, round);
    };
    if (!has_come()) return peers_->wait_for(members_[i], [&] { return is_over() || has_come(); }, waited);
    if (to_meet) compare(i);
  }
}

std::byte* Rounds::open() {
  fault_point("round open");
  return slot(own_, posted_);
}

void Rounds::post(const Fingerprint& fingerprint) {
  auto& own = posts_[own_];
  own.fingerprints[posted_ % 2] = fingerprint;
  fault_point("round written");
  own.posted.store(++posted_, std::memory_order_release);
  fault_point("round posted");
  peers_->ring();
}

bool Rounds::can_meet() const {
  for (size_t i = 0; i < members_.size(); ++i)
    if (!has_posted(i, closed_)) return false;
  return true;
}

void Rounds::meet() {
  for (size_t i = 0; i < members_.size(); ++i) compare(i);
  fault_point("round met");
}

void Rounds::compare(size_t index) {
  if (index == own_) return;
  const auto& mine = fingerprint_of(own_);
  const auto& theirs = fingerprint_of(index);
  const std::string found = difference(mine, members_[own_], theirs, members_[index]);
  if (!found.empty()) peers_->fail(disagreement(peers_->ranks(), mine, members_[index], theirs, found));
}

void Rounds::close() {
  fault_point("round read");
  posts_[own_].closed.store(++closed_, std::memory_order_release);
  fault_point("round closed");
  peers_->ring();
}

}  // namespace fsdp::shm
