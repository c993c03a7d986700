#pragma once
/// \file
/// Causal attention of a sequence that passes through a pipeline slice by slice, as in TeraPipe.

#include <fsdp/process_group.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "parallel/checked_call.h"

namespace fsdp::parallel {

/// The keys and values that the attentions of one stage have got from the earlier slices of one sequence. Forward runs
/// the slices in their order, on one thread at a time. Backward runs them in the reverse order, because the gradients
/// of a slice's keys and values are complete only when the backward of all later slices has run.
class TokenSlices {
 public:
  explicit TokenSlices(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}

  /// The slice that a thread computes.
  struct Place {
    std::shared_ptr<TokenSlices> slices = {};  ///< slices of the sequences; null if the thread computes whole sequences
    size_t slice = 0;                          ///< index of the slice
    int64_t first_token = 0;                   ///< position of the slice's first token in the sequence
    size_t attentions = 0;                     ///< number of attentions that the slice has called so far
  };

  /// Returns the place of this thread.
  static Place& current();

  /// Guard that sets the place of this thread. Its destructor restores the previous place. When activation
  /// checkpointing computes a part of a slice again, it enters the place that the slice had at the beginning of that
  /// part.
  class [[nodiscard]] Entered {
   public:
    explicit Entered(Place place);
    ~Entered();
    Entered(const Entered&) = delete;
    Entered& operator=(const Entered&) = delete;

   private:
    Place before_;
  };

  /// Returns the attention of the slice's tokens to themselves and to the tokens of all earlier slices. Throws
  /// UsageError for attention that is not causal, has a mask or has dropout.
  at::Tensor attend(Place& place, const AttentionArguments& arguments);

 private:
  struct KeptSlice {
    at::Tensor key, value;  // leaves of autograd, whose `.grad` sums the gradients from later slices
  };

  const std::shared_ptr<ProcessGroup> group_;
  std::vector<std::vector<KeptSlice>> kept_;  // indexed by the number of the attention, and then by the slice
};

}  // namespace fsdp::parallel
