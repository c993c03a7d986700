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

/// Outlives its guard in segments of activation checkpointing, which enter it again.
class SequenceScope {
 public:
  SequenceScope(std::shared_ptr<ProcessGroup> group, SequenceMethod method)
      : group_(std::move(group)), method_(method) {}

  const std::shared_ptr<ProcessGroup>& group() const { return group_; }
  SequenceMethod method() const { return method_; }
  /// Of a sequence that is dealt now. Throws UsageError for `operation` if there are fewer tokens than ranks, and if
  /// another length was dealt whose parts are as long.
  SequenceLayout deal(int64_t length, const std::string& operation);
  /// Of a sequence of which each rank has `own_length` tokens: one that was dealt, or one without padding. Throws
  /// UsageError for `operation` if that cannot be.
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

  const std::shared_ptr<ProcessGroup> group_;
  const SequenceMethod method_;
  std::map<int64_t, int64_t> lengths_;  // of whole sequences, by the length of their parts
};

}  // namespace fsdp::parallel
