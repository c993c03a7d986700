#pragma once
/// \file
/// What an open SequenceParallel is to the code that runs in it.

#include <fsdp/process_group.h>
#include <fsdp/sequence_parallel.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "parallel/sequence_layout.h"

namespace fsdp::parallel {

/// Note [Heads and rings]. Keys and values go round the ranks of a ring, and ranks of another axis exchange heads for
/// tokens: each rank of the ring is then several, which have a part of its tokens each outside of attention, and some
/// heads of all of them inside it. SequenceMethod::kHeads is that without a ring, the other methods that without
/// another axis (J. Fang, S. Zhao, A Unified Sequence Parallelism Approach, 2024).

/// Outlives its guard in segments of activation checkpointing, which enter it again.
class SequenceScope {
 public:
  /// An axis that is null has one rank; `method` is the ring's.
  SequenceScope(std::shared_ptr<ProcessGroup> ring, std::shared_ptr<ProcessGroup> heads, SequenceMethod method)
      : ring_(std::move(ring)), heads_(std::move(heads)), method_(method) {}

  const std::shared_ptr<ProcessGroup>& ring() const { return ring_; }
  const std::shared_ptr<ProcessGroup>& heads() const { return heads_; }
  /// The number of ranks of an axis, and this one's.
  static int64_t ranks_of(const std::shared_ptr<ProcessGroup>& axis) { return axis ? axis->world_size() : 1; }
  static int64_t rank_of(const std::shared_ptr<ProcessGroup>& axis) { return axis ? axis->rank() : 0; }
  /// The number of ranks of both.
  int64_t ranks() const { return ranks_of(ring_) * ranks_of(heads_); }
  std::string where(const std::string& operation) const { return (ring_ ? ring_ : heads_)->where(operation); }
  SequenceMethod method() const { return method_; }
  /// Of a sequence that is dealt now. Throws UsageError for `operation` if there are fewer tokens than ranks, and if
  /// another length was dealt whose parts are as long.
  SequenceLayout deal(int64_t length, const std::string& operation);
  /// Of a sequence of which each rank of the ring has `own_length` tokens: one that was dealt, or one without padding.
  /// Throws UsageError for `operation` if that cannot be.
  SequenceLayout layout_of(int64_t own_length, const std::string& operation) const;

  /// This thread's, or null.
  static const std::shared_ptr<SequenceScope>& current();

  /// Makes a scope this thread's (null: none), and puts back what was there.
  class [[nodiscard]] Entered {
   public:
    explicit Entered(std::shared_ptr<SequenceScope> scope);
    ~Entered();
    Entered(const Entered&) = delete;
    Entered& operator=(const Entered&) = delete;

   private:
    std::shared_ptr<SequenceScope> before_;
  };

 private:
  SequenceLayout layout(int64_t length) const;

  const std::shared_ptr<ProcessGroup> ring_, heads_;
  const SequenceMethod method_;
  std::map<int64_t, int64_t> lengths_;  // of whole sequences, by the length of their parts
};

}  // namespace fsdp::parallel
