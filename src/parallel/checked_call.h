#pragma once
/// \file
/// Attention in a SequenceParallel scope: the checks of the arguments, and the choice of the method.

#include <ATen/core/Tensor.h>

#include <optional>

#include "parallel/sequence_scope.h"

namespace fsdp::parallel {

/// The arguments of a call of scaled_dot_product_attention.
struct AttentionArguments {
  at::Tensor query, key, value;
  at::Tensor mask;  ///< the attention mask; undefined if there is none
  double dropout = 0;
  bool is_causal = false;
  std::optional<double> scale;
  bool enable_gqa = false;
};

/// Returns the attention of this rank's queries to the whole sequences. The queries, keys and values in `arguments` are
/// this rank's tokens. Throws UsageError, before anything is communicated, for arguments that a scope does not support.
/// Collective.
at::Tensor attention_over_ranks(const SequenceScope& scope, const AttentionArguments& arguments);

}  // namespace fsdp::parallel
