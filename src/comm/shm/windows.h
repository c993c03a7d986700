#pragma once
/// \file
/// Which elements move in which round. Pure.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "comm/core/pieces.h"

namespace fsdp::shm {

/// Elements of one plane that move in one round.
struct Range {
  size_t plane;
  int64_t in_slice;  ///< the first one, as an element of the rank's slice
  int64_t in_whole;  ///< the same, as an element of the flat tensor
  int64_t count;
  size_t position;  ///< where they lie in the window, in bytes
};

/// Several flat tensors, the planes, of which ranks have slices. The slices of one rank lie behind one another, each
/// from a multiple of 16 bytes on, and go through a window that takes the same number of their bytes in each round. A
/// slot has a window for each reader, or one for all.
class Windows {
 public:
  struct Plane {
    int64_t numel;  ///< of one slice, or of the whole tensor
    int64_t element_bytes;
  };

  /// `targets`: the windows that a slot must hold. `turns`: 0 if planes are of slices of equal length; else they are
  /// whole tensors of any length, of which so many ranks take turns, and what a rank has of them differs from round to
  /// round.
  Windows(std::vector<Plane> planes, int targets, size_t slot_bytes, int turns = 0)
      : planes_(std::move(planes)), turns_(turns) {
    int64_t bytes = 0;
    for (const auto& plane : planes_) {
      begins_.push_back(bytes);
      bytes += align_slice(plane.numel * plane.element_bytes);
    }
    const int64_t sharers = std::max(1, turns), room = static_cast<int64_t>(slot_bytes) / std::max(1, targets);
    length_ = std::max(kSliceAlignment,
                       std::min(align_slice(divide_up(bytes, sharers)), room / kSliceAlignment * kSliceAlignment));
    rounds_ = divide_up(bytes, length_ * sharers);
    slot_bytes_ = rounds_ == 0 ? 0 : static_cast<size_t>(length_ * std::max(1, targets));
  }

  /// At least one, so that ranks meet.
  int64_t rounds() const { return std::max<int64_t>(1, rounds_); }
  /// How much of a slot the windows take.
  size_t slot_bytes() const { return slot_bytes_; }
  /// Where `reader`'s window begins in the slot of `writer`, who leaves out its own.
  size_t position(int writer, int reader) const {
    return static_cast<size_t>((reader <= writer ? reader : reader - 1) * length_);
  }
  /// Calls `visit(range)` for what moves of `rank`'s slices in a round; gives the number of bytes.
  template <class Visit>
  size_t visit(int rank, int64_t round, const Visit& visit) const {
    const int64_t begin = (turns_ == 0 ? round : round * turns_ + rank) * length_, end = begin + length_;
    size_t bytes = 0;
    for (size_t i = 0; i < planes_.size(); ++i) {
      const int64_t element = planes_[i].element_bytes, start = begins_[i];
      const int64_t from = std::max(start, begin), to = std::min(start + planes_[i].numel * element, end);
      if (from >= to) continue;
      const int64_t first = (from - start) / element, count = (to - from) / element;
      visit(Range{i, first, turns_ == 0 ? rank * planes_[i].numel + first : first, count,
                  static_cast<size_t>(from - begin)});
      bytes += static_cast<size_t>(to - from);
    }
    return bytes;
  }

 private:
  std::vector<Plane> planes_;
  std::vector<int64_t> begins_;  // of the planes, in bytes
  int64_t length_ = 0, rounds_ = 0;
  size_t slot_bytes_ = 0;
  int turns_;
};

}  // namespace fsdp::shm
