#pragma once
/// \file
/// The other ranks of this host: the state that they share, how a rank waits for them, and how it fails if they do not
/// come.

#include <fsdp/communicator.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "comm/core/rank_lock.h"
#include "comm/core/ranks.h"
#include "comm/failure/verdict.h"
#include "comm/posix/process.h"
#include "comm/shm/segment.h"

namespace fsdp::shm {

/// What other ranks of the host need to find a rank's shared memory: its process id and the name of the host page that
/// it made. All ranks use the first rank's page.
struct Contact {
  int process = 0;
  std::string page = {};

  auto fields() { return std::tie(process, page); }
};

/// Text that one rank writes while others may be reading it. A reader can see parts of the old and of the new text.
/// Text that is too long is cut.
template <size_t kBytes>
class SharedText {
 public:
  void set(std::string_view text) {
    const size_t length = std::min(text.size(), kBytes - 1);
    for (size_t i = 0; i < length; ++i) text_[i].store(text[i], std::memory_order_relaxed);
    text_[length].store('\0', std::memory_order_relaxed);
  }
  std::string get() const {
    std::string text;
    for (size_t i = 0; const char next = text_[i].load(std::memory_order_relaxed); ++i) text += next;
    return text;
  }

 private:
  std::array<std::atomic<char>, kBytes> text_;  // the last one is always 0
};

/// Note [Bells]. A rank that changes a shared word rings its own bell, and a thread that waits for that rank sleeps on
/// its bell. `sleepers` saves the system call when no thread sleeps.
struct alignas(64) RankStatus {
  std::atomic<uint32_t> bell, sleepers;
  std::atomic<int32_t> waits_for;  // the rank for which it waits, plus 1; 0 if it does not wait
  std::atomic<uint32_t> is_busy;   // whether `operation` is in progress
  std::atomic<uint32_t> has_left;  // whether it destroyed its process group
  std::atomic<uint64_t> meetings;  // how often it has met all other ranks, see Peers::meet
  std::atomic<uint64_t> segments;  // number of the newest segment that it mapped or failed to map
  SharedText<512> errors[2];       // why mapping failed, for even and odd segment numbers
  SharedText<256> operation;       // its current or last operation
  SharedText<2048> verdict;        // its verdict after a failure; see HostPage::failed
};

/// Memory that all ranks of a host map. `ranks` has an element for each rank.
struct HostPage {
  /// The rank, plus 1, whose verdict ends every collective on all ranks; it is the first rank that recorded one. 0 if
  /// there is none. A rank writes its verdict before it sets this word, so a rank that dies in between leaves no
  /// half-written verdict.
  std::atomic<int32_t> failed;
  RankStatus ranks[1];

  static size_t bytes(int world_size) {
    return sizeof(HostPage) + sizeof(RankStatus) * static_cast<size_t>(world_size - 1);
  }
};

/// Makes a host page for up to `world_size` ranks; `name` must be unique. Throws Obstacle if that fails or if other
/// processes could not find the page.
Descriptor make_host_page(int world_size, const std::string& name);

class Peers;

/// A sequence of operations of this rank that advances while the rank waits for something else and begins anew after a
/// failure.
class Queue {
 public:
  virtual ~Queue() = default;
  virtual const Peers& peers() const = 0;
  /// Advances the operations as far as possible without waiting.
  virtual void progress() = 0;
  /// Returns whether operations are in flight, which can advance once a peer does its part.
  virtual bool is_under_way() const = 0;
  /// Drops the operations in flight.
  virtual void drop() = 0;
  /// Numbers operations from the beginning again. Called when every rank has dropped its operations in flight.
  virtual void begin_anew() = 0;
};

/// State that all Peers of a rank share: those of its process group and those of the groups split from it. A thread
/// that waits in one of them also advances the operations of all others. Without this, a rank that waits for this one
/// in another group would also wait for whatever this thread waits for.
struct OwnRank {
  RankLock mutex;
  std::vector<Queue*> queues FSDP_GUARDED_BY(mutex);
};

/// The ranks of a group on this host, as one of them sees the others. Every wait ends: because the awaited event
/// occurred, a rank was lost, or the timeout passed. The first rank that sees a failure records it on the host page for
/// all.
///
/// Thread-safe. All threads of a rank use its communicators under the rank's one lock, which `wait_for` releases while
/// it sleeps.
class Peers {
 public:
  /// Joins the other ranks on the first one's host page; see make_shm_communicator. Collective.
  Peers(const std::vector<Contact>& contacts, Ranks ranks, std::chrono::milliseconds timeout,
        std::shared_ptr<OwnRank> its_own_rank);
  /// Leaves: ranks that still wait for this one learn that it will not come.
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  const Ranks& ranks() const { return ranks_; }
  int rank() const { return ranks_.rank; }
  int world_size() const { return ranks_.world_size; }

  /// Returns zero-filled memory that all ranks share. Collective: all ranks get it or all throw Error, which names the
  /// rank that could not take part and why. `purpose`, e.g. "rows of 'blocks.0'", is for messages. The first `head`
  /// bytes get their memory at once, even with Paging::kWhenUsed.
  std::shared_ptr<std::byte> share(size_t bytes, const std::string& purpose, Paging paging = Paging::kAtOnce,
                                   size_t head = 0);
  /// Takes memory now for a part of what was shared with Paging::kWhenUsed. Throws Error if there is none.
  void take_pages_of(std::byte* begin, size_t bytes) const;

  /// Publishes what this rank does, for other ranks' messages.
  void announce(const std::string& operation);
  /// Returns the operation that was announced last.
  std::string operation() const { return status(rank()).operation.get(); }
  /// Publishes that the announced operation is done.
  void announce_end() { status(rank()).is_busy = 0; }
  /// Wakes the threads of all ranks that wait for this rank. Call it after a change of shared memory.
  void ring();
  /// Wakes this rank's own threads that wait. Call it after a change that no peer makes known to them.
  void wake_threads() FSDP_REQUIRES(own_rank->mutex);
  /// Blocks until `ready` returns true. Either `peer` makes it true and rings its bell, or this rank does and wakes its
  /// threads. `ready` is called under the lock. Throws PeerLost, Mismatch or Error, the same on every rank. `waited` is
  /// the time that the operation has waited so far. The function adds this wait to it, and the timeout bounds the sum.
  void wait_for(int peer, const std::function<bool()>& ready, std::chrono::nanoseconds& waited)
      FSDP_REQUIRES(own_rank->mutex);
  /// Returns whether the peer's process has ended or the peer has destroyed its process group.
  bool has_left(int peer) const { return status(peer).has_left.load() != 0 || processes_[peer].has_ended(); }
  /// Returns false in a forked child, which must not write anything for this rank.
  bool is_own_process() const { return getpid() == process_; }

  /// Restarts the ranks after any failure: every rank drops its operations in flight, and the failure is forgotten.
  /// Until all ranks have called it, calls of the others fail. Collective. Throws PeerLost if a rank was lost or does
  /// not call it.
  void start_over();

  /// Records the failure for every rank, and throws the failure that was recorded first.
  [[noreturn]] void fail(Verdict verdict) FSDP_REQUIRES(own_rank->mutex);
  /// Tells the other ranks that `operation` failed on this rank, with an error of its own or because global rank `lost`
  /// was lost. Does nothing if a failure is known already.
  void tell(const std::string& operation, const std::string& error, std::optional<int> lost = std::nullopt)
      FSDP_REQUIRES(own_rank->mutex);
  /// Throws the recorded failure if there is one.
  void check() const FSDP_REQUIRES(own_rank->mutex);

  const std::shared_ptr<OwnRank> own_rank;

 private:
  class WaitingThread;
  RankStatus& status(int rank) const { return page_->ranks[rank]; }
  std::string prefix() const { return ranks_.where(operation()); }
  std::vector<std::optional<Report>> reports() const;
  std::optional<Verdict> failure() const FSDP_REQUIRES(own_rank->mutex);
  void record(Verdict verdict);
  void meet(std::atomic<uint64_t> RankStatus::* count, uint64_t number, std::chrono::nanoseconds& waited)
      FSDP_REQUIRES(own_rank->mutex);
  void meet() FSDP_REQUIRES(own_rank->mutex) {
    std::chrono::nanoseconds waited{0};
    meet(&RankStatus::meetings, ++meetings_, waited);
  }
  void make_progress() FSDP_REQUIRES(own_rank->mutex);

  const pid_t process_ = getpid();
  std::mutex sharing_;  // held while a segment is shared; no thread waits for it under the rank's lock
  std::vector<int> awaited_ FSDP_GUARDED_BY(own_rank->mutex);  // the peers that this rank's threads wait for
  const Contact first_;                                        // the rank that makes the segments
  std::vector<Process> processes_;                             // by rank
  const Ranks ranks_;
  const std::chrono::milliseconds timeout_;
  const bool may_spin_;
  uint64_t segments_ FSDP_GUARDED_BY(own_rank->mutex) = 0, meetings_ FSDP_GUARDED_BY(own_rank->mutex) = 0;
  bool has_joined_ FSDP_GUARDED_BY(own_rank->mutex) = false;
  bool is_starting_over_ FSDP_GUARDED_BY(own_rank->mutex) = false;
  std::optional<Verdict> lost_ FSDP_GUARDED_BY(own_rank->mutex);  // why start_over() failed
  std::shared_ptr<std::byte> memory_;
  HostPage* page_ = nullptr;
};

/// Shares the flat buffers of parameter groups, in which each rank's rows are one slice. Makes one buffer for each
/// part, all in one segment. Collective.
std::vector<std::shared_ptr<SharedBuffer>> share_rows(const std::shared_ptr<Peers>& peers,
                                                      std::span<const SharedPart> parts);

/// Shares memory for data that is the same on all ranks. Makes one buffer for each part, all in one segment. Pages get
/// memory when they are written and lose it when the last rank releases its hold. Collective.
std::vector<std::shared_ptr<HostBuffer>> share_host_memory(Peers& peers, std::span<const SharedPart> parts);

}  // namespace fsdp::shm
