#pragma once
/// \file
/// What collectives over shared memory are made of: every member writes into memory of its own, all read.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "comm/core/fingerprint.h"
#include "comm/shm/peers.h"

namespace fsdp::shm {

/// Rounds of a set of ranks. In a round each member fills a slot (`open`, `post`), waits for the others' posts
/// (`meet`), reads their slots and closes. A member has two slots, so it may post two rounds before it closes the
/// first; then it waits for the slowest reader. Ranks that post different operations in one round fail with Mismatch.
/// Thread safety: under the peers' lock.
class Rounds : public Progress {
  struct alignas(64) Post {
    std::atomic<uint64_t> posted, closed;
    Fingerprint fingerprints[2];
  };

 public:
  /// Gives memory, or null while there is none.
  using FindMemory = std::function<std::shared_ptr<std::byte>()>;

  /// `members`: their ranks, this rank among them. `memory`: `bytes_needed` zeros that they share.
  Rounds(std::shared_ptr<Peers> peers, std::vector<int> members, std::shared_ptr<std::byte> memory, size_t slot_bytes);
  /// Only the first member has slots: others see what it publishes. The memory comes from it when it begins, and anew
  /// after a failure.
  Rounds(std::shared_ptr<Peers> peers, std::vector<int> members, FindMemory find_memory, size_t slot_bytes);
  ~Rounds() override { peers_->remove(*this); }
  /// `slot_bytes`: a multiple of 64. `writers`: members that have slots.
  static size_t bytes_needed(size_t members, size_t slot_bytes, size_t writers) {
    return members * sizeof(Post) + 2 * writers * slot_bytes;
  }

  size_t slot_bytes() const { return slot_bytes_; }
  const std::vector<int>& members() const { return members_; }
  /// Numbers the collectives of these members.
  uint64_t next_sequence() { return ++sequence_; }
  void continue_from(const Rounds& before) { sequence_ = before.sequence_; }
  int in_flight() const { return static_cast<int>(posted_ - closed_); }

  /// Whether every member has read what this rank's slot of the next round held. At most one round is in flight.
  bool can_open();
  /// Waits for one of those that have not, or until `is_over`. `waited`: see Peers::wait_for.
  void wait_to_open(const std::function<bool()>& is_over, std::chrono::milliseconds& waited);
  /// The slot, if it can be opened.
  std::byte* open();
  /// Publishes it.
  void post(const Fingerprint& fingerprint);
  /// Whether every member has posted the oldest round in flight.
  bool can_meet() const;
  /// Waits for one of those that have not, or until `is_over`. Throws Mismatch if the operation of another one differs.
  void wait_to_meet(const std::function<bool()>& is_over, std::chrono::milliseconds& waited);
  /// If it can. Throws Mismatch if operations differ.
  void meet();
  /// In the round that met: member `index`'s slot and fingerprint.
  const std::byte* slot_of(size_t index) const { return slot(index, closed_); }
  const Fingerprint& fingerprint_of(size_t index) const { return posts_[index].fingerprints[closed_ % 2]; }
  /// This rank has read what it needs of the round.
  void close();

  void begin_anew() override;

 private:
  bool attach();
  std::byte* slot(size_t index, uint64_t round) const { return slots_ + (2 * index + round % 2) * slot_bytes_; }
  void compare(size_t index);

  std::shared_ptr<Peers> peers_;
  std::vector<int> members_;
  size_t own_ = 0;  // this rank's index
  size_t slot_bytes_;
  const FindMemory find_memory_;
  std::shared_ptr<std::byte> memory_;  // null until it is found
  Post* posts_ = nullptr;
  std::byte* slots_ = nullptr;
  uint64_t posted_ = 0, closed_ = 0, sequence_ = 0;
};

}  // namespace fsdp::shm
