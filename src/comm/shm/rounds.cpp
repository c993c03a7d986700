#include "comm/shm/rounds.h"

#include <algorithm>

#include "comm/core/fault_point.h"

namespace fsdp::shm {

Rounds::Rounds(std::shared_ptr<Peers> peers, std::vector<int> members, std::shared_ptr<std::byte> memory,
               size_t slot_bytes)
    : Rounds(std::move(peers), std::move(members), [memory = std::move(memory)] { return memory; }, slot_bytes) {
  attach();
}

Rounds::Rounds(std::shared_ptr<Peers> peers, std::vector<int> members, FindMemory find_memory, size_t slot_bytes)
    : peers_(std::move(peers)),
      members_(std::move(members)),
      slot_bytes_(slot_bytes),
      find_memory_(std::move(find_memory)) {
  const auto place = std::find(members_.begin(), members_.end(), peers_->rank());
  own_ = static_cast<size_t>(place - members_.begin());
  peers_->add(*this);
}

bool Rounds::attach() {
  if (memory_) return true;
  memory_ = find_memory_();
  if (!memory_) return false;
  posts_ = reinterpret_cast<Post*>(memory_.get());
  slots_ = memory_.get() + members_.size() * sizeof(Post);
  return true;
}

void Rounds::begin_anew() {
  posted_ = closed_ = sequence_ = 0;
  if (memory_) {
    posts_[own_].posted = 0;
    posts_[own_].closed = 0;
  }
  memory_.reset();
}

bool Rounds::can_open() {
  if (!attach()) return false;
  for (size_t i = 0; i < members_.size(); ++i)
    if (posts_[i].closed.load(std::memory_order_acquire) + 2 <= posted_) return false;
  return true;
}

// While this thread sleeps, others may go on to later rounds.
void Rounds::wait_to_open(const std::function<bool()>& is_over, std::chrono::milliseconds& waited) {
  if (!attach()) return peers_->wait_for(members_.front(), [&] { return is_over() || attach(); }, waited);
  for (size_t i = 0; i < members_.size(); ++i) {
    const auto has_read = [&, round = posted_] { return posts_[i].closed.load(std::memory_order_acquire) + 2 > round; };
    if (i == own_ || has_read()) continue;
    return peers_->wait_for(members_[i], [&] { return is_over() || has_read(); }, waited);
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
    if (posts_[i].posted.load(std::memory_order_acquire) <= closed_) return false;
  return true;
}

void Rounds::wait_to_meet(const std::function<bool()>& is_over, std::chrono::milliseconds& waited) {
  for (size_t i = 0; i < members_.size(); ++i) {
    const auto has_posted = [&, round = closed_] { return posts_[i].posted.load(std::memory_order_acquire) > round; };
    if (!has_posted()) return peers_->wait_for(members_[i], [&] { return is_over() || has_posted(); }, waited);
    compare(i);
  }
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
