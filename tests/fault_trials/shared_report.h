#pragma once
/// \file
/// Memory in which the ranks of a trial tell the process that started them what happens to them.

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

namespace fsdp::test {

constexpr int kMostRanks = 8, kMostPoints = 64;

struct SharedText {
  std::array<char, 3000> characters;
  void set(std::string_view text) { characters[text.copy(characters.data(), characters.size() - 1)] = '\0'; }
};

struct SharedPoint {
  std::array<char, 40> name;
  std::atomic<int> passages;
};

struct SharedRank {
  std::atomic<uint8_t> has_ended;  // ending, lost_rank, hash and message are there
  uint8_t ending;
  int lost_rank;
  uint64_t hash;
  SharedText message, noticed;
  std::array<SharedPoint, kMostPoints> points;
};

/// Begins as zeros.
struct SharedReport {
  std::atomic<int64_t> fault_at_ns;  // of the steady clock; 0: not yet
  std::array<SharedRank, kMostRanks> ranks;
};

}  // namespace fsdp::test
