#include "comm/shm/rounds.h"

#include <algorithm>

#include "comm/fault_point.h"

namespace fsdp::shm {

Rounds::Rounds(std::shared_ptr<Peers> peers, std::vector<int> members, std::shared_ptr<std::byte> memory,
               size_t slot_bytes)
    : peers_(std::move(peers)), members_(std::move(members)), slot_bytes_(slot_bytes), memory_(std::move(memory)) {
  posts_ = reinterpret_cast<Post*>(memory_.get());
  slots_ = memory_.get() + members_.size() * sizeof(Post);
  const auto place = std::find(members_.begin(), members_.end(), peers_->rank());
  own_ = static_cast<size_t>(place - members_.begin());
  peers_->add(*this);
}

void Rounds::begin_anew() {
  posted_ = closed_ = sequence_ = 0;
  posts_[own_].posted = 0;
  posts_[own_].closed = 0;
}

bool Rounds::can_open() const {
  for (size_t i = 0; i < members_.size(); ++i)
    if (posts_[i].closed.load(std::memory_order_acquire) + 2 <= posted_) return false;
  return true;
}

std::byte* Rounds::open() {
  for (size_t i = 0; i < members_.size(); ++i) {
    if (i == own_) continue;
    peers_->wait_for(members_[i], [&] { return posts_[i].closed.load(std::memory_order_acquire) + 2 > posted_; });
  }
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
    if (posts_[i].posted.load(std::memory_order_acquire) <= closed_) return false;
  return true;
}

void Rounds::meet() {
  for (size_t i = 0; i < members_.size(); ++i) {
    if (i == own_) continue;
    peers_->wait_for(members_[i], [&] { return posts_[i].posted.load(std::memory_order_acquire) > closed_; });
    compare(i);
  }
  fault_point("round met");
}

void Rounds::compare(size_t index) {
  const auto& mine = fingerprint_of(own_);
  const auto& theirs = fingerprint_of(index);
  const std::string found = difference(mine, members_[own_], theirs, members_[index]);
  if (!found.empty()) peers_->fail(disagreement(mine, members_[own_], theirs, members_[index], found));
}

void Rounds::close() {
  fault_point("round read");
  posts_[own_].closed.store(++closed_, std::memory_order_release);
  fault_point("round closed");
  peers_->ring();
}

}  // namespace fsdp::shm
