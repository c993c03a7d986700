#pragma once
/// \file
/// Causal attention of a sequence that passes slice by slice, as in TeraPipe.

#include <fsdp/process_group.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "parallel/checked_call.h"

namespace fsdp::parallel {

/// Keys and values that attention of one stage has seen of the earlier slices of one sequence. Slices go forward in
/// their order, one thread at a time, and backward in the reverse order: the gradients of a slice's keys and values are
/// complete when those of all later slices have been computed.
class TokenSlices {
 public:
  explicit TokenSlices(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}

  /// Which slice runs, where it begins in the sequence, and how many attentions it has met.
  struct Place {
    std::shared_ptr<TokenSlices> slices = {};  ///< null: sequences are whole
    size_t slice = 0;
    int64_t first_token = 0;
    size_t attentions = 0;
  };

  /// This thread's.
  static Place& current();

  /// Makes a place this thread's, and puts back what was there. A slice that is computed again enters the place where
  /// it was then.
  class [[nodiscard]] Entered {
   public:
    explicit Entered(Place place);
    ~Entered();
    Entered(const Entered&) = delete;
    Entered& operator=(const Entered&) = delete;

   private:
    Place before_;
  };

  /// The attention of the current slice's tokens with themselves and all earlier ones. Throws UsageError for attention
  /// that is not causal, has a mask or drops anything.
  at::Tensor attend(Place& place, const AttentionArguments& arguments);

 private:
  struct KeptSlice {
    at::Tensor key, value;  // leaves, where later slices' gradients are summed
  };

  const std::shared_ptr<ProcessGroup> group_;
  std::vector<std::vector<KeptSlice>> kept_;  // by attention and slice
};

}  // namespace fsdp::parallel
