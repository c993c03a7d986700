#pragma once
/// \file
/// The other ranks of this host: what they share, waiting for them, and what happens when they do not come.

#include <fsdp/communicator.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
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
#include "comm/failure/neighbours.h"
#include "comm/failure/verdict.h"
#include "comm/shm/segment.h"

namespace fsdp::shm {

/// How ranks of one host find a rank, and the page that it has made, of which they use one: that of the first rank.
struct Contact {
  int process = 0;
  std::string page = {};

  auto fields() { return std::tie(process, page); }
};

/// Text that one rank writes while others may read it; a reader may see half of a new one. It is cut if it is too long.
template <size_t kBytes>
class SharedText {
 public:
  void set(std::string_view text) {
    std::array<char, kBytes> padded{};
    text.copy(padded.data(), kBytes - 1);
    for (size_t i = 0; i < words_.size(); ++i) {
      uint64_t word = 0;
      std::memcpy(&word, padded.data() + i * sizeof(word), sizeof(word));
      words_[i].store(word, std::memory_order_relaxed);
    }
  }
  std::string get() const {
    std::array<char, kBytes> text{};
    for (size_t i = 0; i < words_.size(); ++i) {
      const uint64_t word = words_[i].load(std::memory_order_relaxed);
      std::memcpy(text.data() + i * sizeof(word), &word, sizeof(word));
    }
    text.back() = '\0';
    return text.data();
  }

 private:
  std::array<std::atomic<uint64_t>, kBytes / sizeof(uint64_t)> words_;
};

/// Note [Bells]. A rank that publishes something (in any shared word) rings its own bell, and whoever waits for that
/// rank sleeps on its bell. `sleepers` spares the system call when nobody sleeps.
struct alignas(64) RankStatus {
  std::atomic<uint32_t> bell, sleepers;
  std::atomic<int32_t> waits_for;  // the rank + 1; 0: it does not wait
  std::atomic<uint32_t> is_busy;   // whether `operation` is in progress
  std::atomic<uint32_t> has_left;  // it destroyed its process group
  std::atomic<uint64_t> meetings;  // how often it has met the others, see Peers
  std::atomic<uint64_t> segments;  // the newest one that it has mapped, or has failed to
  SharedText<512> errors[2];       // why it failed to, of segments with even numbers and of those with odd ones
  SharedText<256> operation;       // what it does or did last
  SharedText<2048> verdict;        // why it says that the ranks failed; see HostPage::failed
};

/// `ranks` is as long as there are ranks.
struct HostPage {
  /// The rank + 1 whose verdict ends every collective of all ranks alike, the first one that came; 0: none. A rank
  /// writes its verdict before it puts itself here, so one that dies in between leaves nothing half done.
  std::atomic<int32_t> failed;
  RankStatus ranks[1];

  static size_t bytes(int world_size) {
    return sizeof(HostPage) + sizeof(RankStatus) * static_cast<size_t>(world_size - 1);
  }
};

/// A host page for up to so many ranks, under a name that nobody else has. Throws Obstacle, also where other processes
/// would not find it.
Descriptor make_host_page(int world_size, const std::string& name);

class Peers;

/// An order of this rank's that goes on while the rank waits for something else, and begins anew after a failure.
class Order {
 public:
  virtual ~Order() = default;
  /// Does what can be done without waiting.
  virtual void progress() = 0;
  /// Whether there may be something to do as soon as a peer has done its part.
  virtual bool is_under_way() const = 0;
  /// Drops what is in flight.
  virtual void drop() = 0;
  /// Counts from the beginning again; every rank has dropped what was in flight.
  virtual void begin_anew() = 0;
};

/// What a rank's Peers have in common: those of the ranks that it joined and those of the groups split from them. A
/// thread that waits in one of them moves on what is in flight in all, so that who waits there for this rank does not
/// wait for what it waits for here.
struct OwnRank {
  RankLock mutex;
  std::vector<Peers*> peers FSDP_GUARDED_BY(mutex);
};

/// Every wait ends: with what it waited for, with the loss of a rank, or with the timeout. The first rank that sees a
/// failure records it on the host page for all.
///
/// Thread safety: all of it. What a rank's threads do with communicators they do under the rank's one lock, which
/// `wait_for` lets go while it sleeps.
class Peers {
 public:
  /// Meets the others on the first one's host page, see make_shm_communicator. Collective.
  Peers(const std::vector<Contact>& contacts, Ranks ranks, std::chrono::milliseconds timeout,
        std::shared_ptr<OwnRank> its_own_rank);
  /// Leaves: whoever still waits for this rank learns that it will not come.
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  const Ranks& ranks() const { return ranks_; }
  int rank() const { return ranks_.rank; }
  int world_size() const { return ranks_.world_size; }

  /// The same zeros on every rank. Collective: all ranks get it or all throw. Throws Error naming the rank that could
  /// not take part and why. `purpose`, e.g. "rows of 'blocks.0'": for messages. `head`: the number of bytes at the
  /// beginning whose memory is taken at once, even with Paging::kWhenUsed.
  std::shared_ptr<std::byte> share(size_t bytes, const std::string& purpose, Paging paging = Paging::kAtOnce,
                                   size_t head = 0);
  /// Takes the memory of a part of what was shared with Paging::kWhenUsed. Throws Error if there is none.
  void take_pages_of(std::byte* begin, size_t bytes) const;

  /// Says what this rank does, for other ranks' messages.
  void announce(const std::string& operation);
  /// What was announced is done.
  void announce_end() { status(rank()).is_busy = 0; }
  /// Wakes whoever waits for this rank; call after a change of shared memory.
  void ring();
  /// Wakes this rank's own threads that wait; call after a change that they do not hear of from a peer.
  void wake_threads() FSDP_REQUIRES(own_rank->mutex);
  /// Returns once `ready` is true, which becomes so by an act of `peer`'s that rings its bell, or by one of this rank's
  /// that wakes its threads; it is asked under the lock. Throws PeerLost, Mismatch or Error, the same on every rank.
  /// `waited`: how long its operation has waited before, which the timeout bounds together with this wait; it grows by
  /// the time that this one takes.
  void wait_for(int peer, const std::function<bool()>& ready, std::chrono::nanoseconds& waited)
      FSDP_REQUIRES(own_rank->mutex);
  /// Whether the peer's process ended or left.
  bool has_left(int peer) const { return status(peer).has_left.load() != 0 || neighbours_.has_ended(peer); }
  /// Not in a child that was forked: there nothing must be written for this rank.
  bool is_own_process() const { return getpid() == process_; }

  /// Begins anew, whatever happened before: everything in flight is dropped on every rank, and so is the failure. Until
  /// all ranks are here, those that go on fail. Collective. Throws PeerLost if one was lost or does not come.
  void start_over();

  /// Records the failure for every rank and throws the one that was recorded first.
  [[noreturn]] void fail(Verdict verdict) FSDP_REQUIRES(own_rank->mutex);
  /// Tells the other ranks, unless they know of a failure, that this rank's operation ended with an error of its own,
  /// or with the loss of a global rank.
  void tell(const std::string& operation, const std::string& error, std::optional<int> lost = std::nullopt)
      FSDP_REQUIRES(own_rank->mutex);
  /// The operation that was announced.
  void tell(const std::string& error) FSDP_REQUIRES(own_rank->mutex) { tell(operation(), error); }
  /// Throws the failure that is recorded, if one is.
  void check() const FSDP_REQUIRES(own_rank->mutex);

  const std::shared_ptr<OwnRank> own_rank;
  /// Those of this rank that use this.
  std::vector<Order*> orders FSDP_GUARDED_BY(own_rank->mutex);

 private:
  class WaitingThread;
  RankStatus& status(int rank) const { return page_->ranks[rank]; }
  std::string operation() const { return status(rank()).operation.get(); }
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
  void make_progress_here();
  bool is_under_way() const;
  bool is_under_way_elsewhere() const FSDP_REQUIRES(own_rank->mutex);

  const pid_t process_ = getpid();
  std::mutex sharing_;  // for as long as a segment is shared; never waited for under the rank's lock
  std::vector<int> awaited_ FSDP_GUARDED_BY(own_rank->mutex);  // the peers that this rank's threads wait for
  const Contact first_;                                        // makes the segments
  const Neighbours neighbours_;
  const Ranks ranks_;
  const std::chrono::milliseconds timeout_;
  const bool may_spin_;
  uint64_t segments_ FSDP_GUARDED_BY(own_rank->mutex) = 0, meetings_ FSDP_GUARDED_BY(own_rank->mutex) = 0;
  bool has_joined_ FSDP_GUARDED_BY(own_rank->mutex) = false;
  bool is_starting_over_ FSDP_GUARDED_BY(own_rank->mutex) = false;
  std::optional<Verdict> lost_ FSDP_GUARDED_BY(own_rank->mutex);  // why starting over came to nothing
  std::shared_ptr<std::byte> memory_;
  HostPage* page_ = nullptr;
};

/// Groups' flat buffers, each rank's rows its slice of them: one for each part, all of them in one segment. Collective.
std::vector<std::shared_ptr<SharedBuffer>> share_rows(const std::shared_ptr<Peers>& peers,
                                                      std::span<const SharedPart> parts);

/// What ranks hold alike: a buffer for each part, all of them in one segment, whose pages come as they are written and
/// go with the last rank that holds them. Collective.
std::vector<std::shared_ptr<HostBuffer>> share_host_memory(Peers& peers, std::span<const SharedPart> parts);

}  // namespace fsdp::shm
