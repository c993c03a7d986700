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

/// A slot of a collective; larger reductions go through in several rounds, so that slots stay in caches. And one of a
/// message between two ranks.
inline constexpr size_t kCollectiveSlotBytes = size_t{2} << 20, kMessageSlotBytes = size_t{64} << 10;

/// Rounds of a set of ranks. In a round each member fills a slot (`open`, `post`), waits for the others' posts
/// (`meet`), reads their slots and closes. A member has two slots, so it may post two rounds before it closes the
/// first; then it waits for the slowest reader. Ranks that post different operations in one round fail with Mismatch.
/// Thread safety: under the peers' lock.
class Rounds {
  struct alignas(64) Post {
    std::atomic<uint64_t> posted, closed;
    Fingerprint fingerprints[2];
  };

 public:
  /// `members`: their ranks, this rank among them. `memory`: `bytes_needed` zeros that they share.
  Rounds(std::shared_ptr<Peers> peers, std::vector<int> members, std::shared_ptr<std::byte> memory, size_t slot_bytes);
  /// `slot_bytes`: a multiple of 64. `writers`: the first members, which have slots; others see what these publish.
  static constexpr size_t bytes_needed(size_t members, size_t slot_bytes, size_t writers) {
    return members * sizeof(Post) + 2 * writers * slot_bytes;
  }

  /// Numbers the collectives of these members.
  uint64_t next_sequence() { return ++sequence_; }
  int in_flight() const { return static_cast<int>(posted_ - closed_); }

  /// Whether every member has read what this rank's slot of the next round held. At most one round is in flight.
  bool can_open() const;
  /// The slot, if it can be opened.
  std::byte* open();
  /// Publishes it.
  void post(const Fingerprint& fingerprint);
  /// Whether every member has posted the oldest round in flight.
  bool can_meet() const;
  /// Waits for a member that has not posted the oldest round in flight, if `to_meet`, or else for one that keeps this
  /// rank from opening the next one; or until `is_over`. `waited`: see Peers::wait_for. Throws Mismatch if operations
  /// differ.
  void wait(bool to_meet, const std::function<bool()>& is_over, std::chrono::milliseconds& waited);
  /// If it can. Throws Mismatch if operations differ.
  void meet();
  /// In the round that met: member `index`'s slot and fingerprint.
  const std::byte* slot_of(size_t index) const { return slot(index, closed_); }
  const Fingerprint& fingerprint_of(size_t index) const { return posts_[index].fingerprints[closed_ % 2]; }
  /// This rank has read what it needs of the round.
  void close();

  /// Counts from the beginning again, as all members do.
  void begin_anew();

 private:
  bool has_read(size_t index, uint64_t round) const {
    return posts_[index].closed.load(std::memory_order_acquire) + 2 > round;
  }
  bool has_posted(size_t index, uint64_t round) const {
    return posts_[index].posted.load(std::memory_order_acquire) > round;
  }
  std::byte* slot(size_t index, uint64_t round) const { return slots_ + (2 * index + round % 2) * slot_bytes_; }
  void compare(size_t index);

  const std::shared_ptr<Peers> peers_;
  const std::vector<int> members_;
  const size_t own_;  // this rank's index
  const size_t slot_bytes_;
  const std::shared_ptr<std::byte> memory_;
  Post* const posts_;
  std::byte* const slots_;
  uint64_t posted_ = 0, closed_ = 0, sequence_ = 0;
};

}  // namespace fsdp::shm
