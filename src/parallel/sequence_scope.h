#pragma once
/// \file
/// The scope that an open SequenceParallel makes current on its thread.

#include <fsdp/process_group.h>
#include <fsdp/sequence_parallel.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "parallel/sequence_layout.h"

namespace fsdp::parallel {

/// Note [Heads and rings]. A scope may have two axes. The ranks of the ring pass keys and values around. The ranks of
/// the axis of heads exchange heads for tokens. With both axes, several ranks together have the tokens of one rank of
/// the ring: outside attention each of them has a part of these tokens with all heads, and inside attention all of
/// these tokens with some heads. SequenceMethod::kHeads has only the axis of heads, and the other methods may have only
/// the ring (J. Fang, S. Zhao, A Unified Sequence Parallelism Approach, 2024).

/// The axes, the method and the sequence lengths of a SequenceParallel. Checkpointed regions share it and enter it
/// again when they run again, so it may outlive the SequenceParallel.
class SequenceScope {
 public:
  /// Either axis may be null, which means one rank. `method` is that of the ring.
  SequenceScope(std::shared_ptr<ProcessGroup> ring, std::shared_ptr<ProcessGroup> heads, SequenceMethod method)
      : ring_(std::move(ring)), heads_(std::move(heads)), method_(method) {}

  const std::shared_ptr<ProcessGroup>& ring() const { return ring_; }
  const std::shared_ptr<ProcessGroup>& heads() const { return heads_; }
  /// Returns the number of ranks of an axis.
  static int64_t ranks_of(const std::shared_ptr<ProcessGroup>& axis) { return axis ? axis->world_size() : 1; }
  /// Returns this rank's number on an axis.
  static int64_t rank_of(const std::shared_ptr<ProcessGroup>& axis) { return axis ? axis->rank() : 0; }
  /// Returns the number of ranks of both axes together.
  int64_t ranks() const { return ranks_of(ring_) * ranks_of(heads_); }
  std::string where(const std::string& operation) const { return (ring_ ? ring_ : heads_)->where(operation); }
  SequenceMethod method() const { return method_; }
  /// Returns the layout of a sequence of `length` tokens that `operation` splits, and remembers the length. Throws
  /// UsageError if there are fewer tokens than ranks, or if the scope has split a sequence of another length whose
  /// parts have the same length.
  SequenceLayout deal(int64_t length, const std::string& operation);
  /// Returns the layout of a sequence of which each rank of the ring has `own_length` tokens. This is a sequence that
  /// `deal` has split, or else one without padding. Throws UsageError, in the name of `operation`, if no such sequence
  /// exists.
  SequenceLayout layout_of(int64_t own_length, const std::string& operation) const;

  /// Returns the current scope of this thread, or null.
  static const std::shared_ptr<SequenceScope>& current();

  /// Guard that makes a scope the current one of this thread; a null pointer means no scope. Its destructor restores
  /// the previous scope.
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
  std::map<int64_t, int64_t> lengths_;  // from SequenceLayout::own_length to the length of the whole sequence
};

}  // namespace fsdp::parallel
