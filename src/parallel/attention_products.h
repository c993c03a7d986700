#pragma once
/// \file
/// Attention by matrix products, which keep the scores in memory.

#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <limits>
#include <utility>

namespace fsdp::parallel {

/// Operands of the attention of one block.
struct BlockOperands {
  /// Tensors of sizes [batch, heads, tokens, size]. Keys and values may have fewer heads than the queries, if their
  /// number of heads divides the queries' number of heads.
  at::Tensor query, key, value;
  /// Mask with four dims, each of the size that the scores have or 1. It is boolean (true if the query sees the key) or
  /// is added to the scores. Undefined if there is none.
  at::Tensor mask;
  /// True if query i sees only the keys 0 to i.
  bool is_causal = false;
  double scale = 1;
};

/// Score of a key that is hidden from a query.
constexpr double kHidden = -std::numeric_limits<double>::infinity();

/// Returns the dtype in which attention computes: fp32 for bf16 and fp16, otherwise the tensor's dtype.
inline at::ScalarType computed_in(const at::Tensor& tensor) { return at::toOpMathType(tensor.scalar_type()); }

/// Converts the mask, which may be boolean, into one of dtype `dtype` that is added to the scores.
at::Tensor additive(const at::Tensor& mask, at::ScalarType dtype);

/// Returns `logsumexp` with 0 in place of minus infinity. The result can be subtracted from scores of minus infinity
/// without NaN.
inline at::Tensor finite(const at::Tensor& logsumexp) { return logsumexp.masked_fill(logsumexp.isneginf(), 0); }

/// Returns keys or values in the dtype of the computation, repeated to as many heads as the queries have.
at::Tensor repeated_heads(const at::Tensor& tensor, const at::Tensor& query);
/// Returns the gradient of `tensor`, keys or values, from the gradient of repeated_heads(tensor, query).
at::Tensor summed_heads(const at::Tensor& grad, const at::Tensor& tensor);

/// Returns the output and the logsumexp of a block; see Note [Blocks] in attention_block.h.
std::pair<at::Tensor, at::Tensor> by_products(const BlockOperands& operands);
/// Returns the block's share of the gradients of queries, keys and values; see `backward_of` in attention_block.h.
std::array<at::Tensor, 3> backward_by_products(const BlockOperands& operands, const at::Tensor& grad,
                                               const at::Tensor& output, const at::Tensor& logsumexp);

}  // namespace fsdp::parallel
