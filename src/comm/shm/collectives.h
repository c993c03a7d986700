#pragma once
/// \file
/// Collectives, or messages, over shared memory: every member writes into slots of its own, and all members read them.

#include <fsdp/communicator.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/core/fingerprint.h"
#include "comm/core/traffic_count.h"
#include "comm/shm/peers.h"

namespace fsdp::shm {

/// Returns the slot of the member with this index in the round that is read.
using Slots = std::function<const std::byte*(size_t member)>;

/// What a collective does on this rank in each of its rounds.
struct Steps {
  int64_t count = 1;
  /// The most bytes of its slot that this rank fills.
  size_t slot_bytes = 0;
  /// True if a round may be written before the previous round has been read.
  bool overlap = true;
  /// Fills this rank's slot.
  std::function<void(int64_t round, std::byte* slot)> write = {};
  /// Reads the other members' slots.
  std::function<void(int64_t round, const Slots& slots)> read = {};
};

/// The rank that writes, and the size of its slots.
struct Writer {
  int rank, world_size;
  size_t slot_bytes;
  std::shared_ptr<LinkCount> traffic;  ///< counts the bytes that are copied
};

/// Gathers every rank's slices on all ranks.
Steps gather_steps(std::vector<GatherPlane> planes, const Writer& writer);
/// Sums the ranks' contributions to this rank's slices in rank order. A rank writes only its contributions to other
/// ranks' slices into its slot; it reads its contributions to its own slices in place.
Steps reduce_steps(std::vector<ReducePlane> planes, double scale, const Writer& writer);
/// In even rounds each rank reduces some of the elements, and in odd rounds it passes them to all ranks.
Steps all_reduce_steps(std::span<const at::Tensor> flats, ReduceOp op, const Writer& writer);
Steps all_to_all_steps(const at::Tensor& output, const at::Tensor& input, const Writer& writer);
/// Copies the tensor of the member with the index `source` to the other members' tensors.
Steps copy_steps(const at::Tensor& tensor, int source, bool is_source, const Writer& writer);

/// The size of a slot of a collective, and of a slot of messages between two ranks. Larger data moves in several
/// rounds, so that slots stay in caches.
inline constexpr size_t kCollectiveSlotBytes = size_t{2} << 20, kMessageSlotBytes = size_t{64} << 10;

/// The collectives of one communicator, or the messages from one rank to another, which run in the order in which they
/// were started. A collective runs in rounds: in each round every member fills a slot and posts it, waits for the other
/// members' posts, reads their slots and closes the round. A member has two slots, so it is at most two rounds ahead of
/// its slowest peer. Ranks that post different operations in one round fail with Mismatch.
///
/// A collective advances whenever this rank makes a later call. Only a collective with a continuation (Work::then) has
/// a thread that waits for it, so the continuation begins when the collective is done and not at the rank's next call.
/// Thread-safe.
///
/// Note [Waiting threads]. All work here is done under the rank's lock and without waiting. A thread that can do
/// nothing but wait sleeps without the lock. When it wakes it checks everything again, because meanwhile other threads
/// may have advanced the queue, finished the operation that it waits for, failed, or started over.
class Collectives : public Queue, public std::enable_shared_from_this<Collectives> {
  struct alignas(64) Post {
    std::atomic<uint64_t> posted, closed;
    Fingerprint fingerprints[2];
  };

 public:
  /// `members` are the ranks that take part, this rank included. `memory` is `bytes_needed` zero bytes that they share.
  Collectives(std::shared_ptr<Peers> peers, std::vector<int> members, std::shared_ptr<std::byte> memory,
              size_t slot_bytes);
  ~Collectives() override;
  /// Returns the bytes that the constructor needs. `slot_bytes` is a multiple of 64. Only the first `writers` members
  /// have slots; the others only read.
  static constexpr size_t bytes_needed(size_t members, size_t slot_bytes, size_t writers) {
    return head_bytes(members) + 2 * writers * slot_bytes;
  }
  /// Returns the bytes in front of the slots.
  static constexpr size_t head_bytes(size_t members) { return members * sizeof(Post); }

  /// Starts an operation without waiting.
  std::shared_ptr<Work> start(Fingerprint fingerprint, Steps steps);
  /// Blocks until every operation that was started is done.
  void finish_all();

  const Peers& peers() const override { return *peers_; }
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
  /// Runs `act`. If it throws, this and every later operation fails with the same error.
  void guarded(const std::function<void()>& act) FSDP_REQUIRES(peers_->own_rank->mutex);

  /// Returns whether the member has read what this rank wrote into the same slot two rounds before `round`.
  bool has_read(size_t member, uint64_t round) const {
    return posts_[member].closed.load(std::memory_order_acquire) + 2 > round;
  }
  bool has_posted(size_t member, uint64_t round) const {
    return posts_[member].posted.load(std::memory_order_acquire) > round;
  }
  /// Throws Mismatch if the member's operation in the oldest round differs from this rank's.
  void compare(size_t member) FSDP_REQUIRES(peers_->own_rank->mutex);
  std::byte* slot(size_t member, uint64_t round) const { return slots_ + (2 * member + round % 2) * slot_bytes_; }

  const std::shared_ptr<Peers> peers_;
  const std::vector<int> members_;
  const size_t own_;  // this rank's index in `members_`
  const std::shared_ptr<std::byte> memory_;
  Post* const posts_;
  std::byte* const slots_;
  const size_t slot_bytes_;
  uint64_t posted_ FSDP_GUARDED_BY(peers_->own_rank->mutex) = 0, closed_ FSDP_GUARDED_BY(peers_->own_rank->mutex) = 0;
  uint64_t sequence_ FSDP_GUARDED_BY(peers_->own_rank->mutex) = 0;
  // For each of this rank's slots, the number of bytes that already have memory.
  size_t taken_[2] FSDP_GUARDED_BY(peers_->own_rank->mutex) = {};
  std::deque<std::shared_ptr<Operation>> queue_ FSDP_GUARDED_BY(peers_->own_rank->mutex);
  std::exception_ptr failure_ FSDP_GUARDED_BY(peers_->own_rank->mutex);
  // The threads that wait for operations with continuations.
  std::deque<std::future<void>> followed_ FSDP_GUARDED_BY(peers_->own_rank->mutex);
};

}  // namespace fsdp::shm
