#pragma once
/// \file
/// The collectives, or the messages, of one order over shared memory: every member writes into memory of its own, all
/// read.

#include <fsdp/communicator.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "comm/core/fingerprint.h"
#include "comm/core/traffic_count.h"
#include "comm/shm/peers.h"

namespace fsdp::shm {

/// The slot of a member, by its index, in the round that is read.
using Slots = std::function<const std::byte*(size_t member)>;

/// What a collective does in each of its rounds.
struct Steps {
  int64_t count = 1;
  /// How much of its slot a rank fills at most.
  size_t slot_bytes = 0;
  /// Whether a round may be written before the one before it is read.
  bool overlap = true;
  /// Fills this rank's slot.
  std::function<void(int64_t round, std::byte* slot)> write = {};
  /// Reads the other members' slots.
  std::function<void(int64_t round, const Slots& slots)> read = {};
};

/// Who writes into which memory.
struct Writer {
  int rank, world_size;
  size_t slot_bytes;
  std::shared_ptr<LinkCount> traffic;  ///< where what is copied counts
};

/// Gives every rank's slices to all.
Steps gather_steps(std::vector<GatherPlane> planes, const Writer& writer);
/// Sums the ranks' contributions to this rank's slices in rank order. A rank publishes only what others own; its own
/// slices are read where they lie.
Steps reduce_steps(std::vector<ReducePlane> planes, double scale, const Writer& writer);
/// Even rounds reduce some elements on each rank, odd ones give them to all.
Steps all_reduce_steps(std::vector<at::Tensor> flats, ReduceOp op, const Writer& writer);
Steps all_to_all_steps(const at::Tensor& output, const at::Tensor& input, const Writer& writer);
/// The source's tensor becomes the others'. `source`: an index of a member.
Steps copy_steps(const at::Tensor& tensor, int source, bool is_source, const Writer& writer);

/// A slot of a collective; larger reductions go through in several rounds, so that slots stay in caches. And one of a
/// message between two ranks.
inline constexpr size_t kCollectiveSlotBytes = size_t{2} << 20, kMessageSlotBytes = size_t{64} << 10;

/// First in, first out. A collective goes through in rounds: in each a member fills a slot and posts it, waits for the
/// others' posts, reads their slots and closes the round. A member has two slots, so at most two rounds of a collective
/// and its successors wait for slower peers. Ranks that post different operations in one round fail with Mismatch.
///
/// What was started goes on in later calls of this rank. Only if something follows a collective a thread waits for it,
/// so that what follows begins when it is done, not when a thread of the rank next comes by. Thread safety: all of it.
///
/// Note [Waiting threads]. What is done here is done under the peers' lock and without waiting. A thread that has
/// nothing left to do but to wait sleeps without the lock, and looks at everything again when it wakes: others may have
/// advanced the queue, finished what it waits for, failed, or started over.
class Collectives : public Order, public std::enable_shared_from_this<Collectives> {
  struct alignas(64) Post {
    std::atomic<uint64_t> posted, closed;
    Fingerprint fingerprints[2];
  };

 public:
  /// `members`: their ranks, this rank among them. `memory`: `bytes_needed` zeros that they share.
  Collectives(std::shared_ptr<Peers> peers, std::vector<int> members, std::shared_ptr<std::byte> memory,
              size_t slot_bytes);
  ~Collectives() override;
  /// `slot_bytes`: a multiple of 64. `writers`: the first members, which have slots; others see what these publish.
  static constexpr size_t bytes_needed(size_t members, size_t slot_bytes, size_t writers) {
    return head_bytes(members) + 2 * writers * slot_bytes;
  }
  /// What of it is in front of the slots.
  static constexpr size_t head_bytes(size_t members) { return members * sizeof(Post); }

  /// Waits for nothing.
  std::shared_ptr<Work> start(Fingerprint fingerprint, Steps steps);
  /// Finishes everything that was started.
  void finish_all();

  void progress() override;
  bool is_under_way() const override FSDP_REQUIRES(peers_->own_rank->mutex) { return !queue_.empty(); }
  void drop() override FSDP_REQUIRES(peers_->own_rank->mutex);
  void begin_anew() override FSDP_REQUIRES(peers_->own_rank->mutex);

 private:
  class Operation;
  bool post_next() FSDP_REQUIRES(peers_->own_rank->mutex);
  bool read_next() FSDP_REQUIRES(peers_->own_rank->mutex);
  void advance() FSDP_REQUIRES(peers_->own_rank->mutex);
  void advance_until(const std::function<bool()>& is_over) FSDP_REQUIRES(peers_->own_rank->mutex);
  void wait_for_round(bool to_read, const std::function<bool()>& is_over, std::chrono::nanoseconds& waited)
      FSDP_REQUIRES(peers_->own_rank->mutex);
  void wait_for(Operation& work);
  void then(const std::shared_ptr<Operation>& work, Work::Next next);
  /// Runs `act`; a failure ends this and every later collective.
  void guarded(const std::function<void()>& act) FSDP_REQUIRES(peers_->own_rank->mutex);

  /// Whether the member has read what this rank's slot, which the round uses again, held before.
  bool has_read(size_t member, uint64_t round) const {
    return posts_[member].closed.load(std::memory_order_acquire) + 2 > round;
  }
  bool has_posted(size_t member, uint64_t round) const {
    return posts_[member].posted.load(std::memory_order_acquire) > round;
  }
  /// Throws Mismatch if the member's operation in the oldest round is another one.
  void compare(size_t member) FSDP_REQUIRES(peers_->own_rank->mutex);
  std::byte* slot(size_t member, uint64_t round) const { return slots_ + (2 * member + round % 2) * slot_bytes_; }

  const std::shared_ptr<Peers> peers_;
  const std::vector<int> members_;
  const size_t own_;  // this rank's index
  const std::shared_ptr<std::byte> memory_;
  Post* const posts_;
  std::byte* const slots_;
  const size_t slot_bytes_;
  uint64_t posted_ FSDP_GUARDED_BY(peers_->own_rank->mutex) = 0, closed_ FSDP_GUARDED_BY(peers_->own_rank->mutex) = 0;
  uint64_t sequence_ FSDP_GUARDED_BY(peers_->own_rank->mutex) = 0;
  // Of this rank's slots, the bytes that have memory.
  size_t taken_[2] FSDP_GUARDED_BY(peers_->own_rank->mutex) = {};
  std::deque<std::shared_ptr<Operation>> queue_ FSDP_GUARDED_BY(peers_->own_rank->mutex);
  std::exception_ptr failure_ FSDP_GUARDED_BY(peers_->own_rank->mutex);
  // Threads that wait for collectives which something follows.
  std::deque<std::future<void>> followed_ FSDP_GUARDED_BY(peers_->own_rank->mutex);
};

}  // namespace fsdp::shm
