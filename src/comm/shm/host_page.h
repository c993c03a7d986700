#pragma once
/// \file
/// What every rank of a host can read about the others, in shared memory that begins as zeros.

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "comm/failure/verdict.h"

namespace fsdp::shm {

/// Text that one rank writes while others may read it; a reader may see half of a new one.
class SharedText {
 public:
  void set(std::string_view text);
  std::string get() const;

 private:
  std::array<std::atomic<uint64_t>, 32> words_;
};

/// A verdict in shared memory.
struct SharedVerdict {
  int32_t kind, rank;
  uint32_t length;
  std::array<char, 2000> text;

  void set(const Verdict& verdict);
  Verdict get() const;
};

/// Note [Bells]. A rank that publishes something (in any shared word) rings its own bell, and whoever waits for that
/// rank sleeps on its bell. `sleepers` spares the system call when nobody sleeps.
struct alignas(64) RankStatus {
  std::atomic<uint32_t> bell, sleepers;
  std::atomic<int32_t> waits_for;  // the rank + 1; 0: it does not wait
  std::atomic<uint32_t> is_busy;   // whether `operation` is in progress
  std::atomic<uint32_t> has_left;  // it destroyed its process group
  std::atomic<uint32_t> restarts;  // stages of Peers::start_over that it has reached
  SharedText operation;            // what it does or did last
  SharedVerdict verdict;           // why it says that the ranks failed; see HostPage::failed
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

}  // namespace fsdp::shm
