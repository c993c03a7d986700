#pragma once
/// \file
/// What every rank of a host can read about the others, in shared memory that begins as zeros.

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <tuple>

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

}  // namespace fsdp::shm
