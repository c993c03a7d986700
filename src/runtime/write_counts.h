#pragma once
/// \file
/// How often every rank has written the rows of a group. Integers only.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace fsdp::runtime {

/// The writes that ranks compare, so that an optimizer step which only some of them make is found: the most that any
/// one parameter was written, so that ranks without rows of some parameters count alike.
class WriteCounts {
 public:
  /// The rows of one slot are about to be written, or those of all slots at once.
  void note(std::optional<size_t> slot) {
    if (!slot) {
      ++to_all_slots_;
    } else {
      to_slot_.resize(std::max(to_slot_.size(), *slot + 1));
      most_to_slot_ = std::max(most_to_slot_, ++to_slot_[*slot]);
    }
    if (to_all_slots_ + most_to_slot_ <= since_taken_) return;
    ++since_taken_;
    ++total_;
  }
  /// Since this was asked last: by a gather or a scope, which tells the other ranks.
  uint32_t take() {
    to_slot_.clear();
    to_all_slots_ = most_to_slot_ = 0;
    return std::exchange(since_taken_, 0);
  }
  /// What was taken did not reach the other ranks.
  void give_back(uint32_t writes) { since_taken_ += writes; }
  /// All that were counted, the same on every rank that ran the same program.
  int64_t total() const { return total_; }

 private:
  uint32_t since_taken_ = 0;
  int64_t total_ = 0;
  // Since the last `take`: writes to all slots at once, the others to each slot, and the most of these.
  uint32_t to_all_slots_ = 0;
  std::vector<uint32_t> to_slot_;
  uint32_t most_to_slot_ = 0;
};

}  // namespace fsdp::runtime
