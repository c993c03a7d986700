#pragma once
/// \file
/// Arguments of scaled_dot_product_attention that a scope takes, and what is made of them.

#include <ATen/core/Tensor.h>

#include <optional>

#include "parallel/sequence_scope.h"

namespace fsdp::parallel {

/// As LibTorch has them.
struct AttentionArguments {
  at::Tensor query, key, value;
  at::Tensor mask;  ///< or undefined
  double dropout = 0;
  bool is_causal = false;
  std::optional<double> scale;
  bool enable_gqa = false;
};

/// The attention of whole sequences, of which the arguments are this rank's tokens. Throws UsageError, before anything
/// is communicated, for what the scope cannot do.
at::Tensor attention_over_ranks(const SequenceScope& scope, const AttentionArguments& arguments);

}  // namespace fsdp::parallel
