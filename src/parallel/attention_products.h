#pragma once
/// \file
/// Attention by matrix products, whose scores are in memory.

#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <limits>
#include <utility>

namespace fsdp::parallel {

/// Queries [batch, heads, tokens, size], keys and values of the same sizes, with as many heads or a divisor of them.
struct BlockOperands {
  at::Tensor query, key, value;
  /// With four dims, each that of the scores or 1; boolean (true: seen), or additive. Or undefined.
  at::Tensor mask;
  /// Query i sees the keys 0 to i.
  bool is_causal = false;
  double scale = 1;
};

/// The score of a key that is hidden.
constexpr double kHidden = -std::numeric_limits<double>::infinity();

/// fp32 for bf16 and fp16.
inline at::ScalarType computed_in(const at::Tensor& tensor) { return at::toOpMathType(tensor.scalar_type()); }

/// A boolean mask as one that is added.
at::Tensor additive(const at::Tensor& mask, at::ScalarType dtype);

/// Logarithms of which each can be taken from a score that is minus infinity.
inline at::Tensor finite(const at::Tensor& logsumexp) { return logsumexp.masked_fill(logsumexp.isneginf(), 0); }

/// Keys or values in the dtype of the computation, with as many heads as the queries have; and the gradient of that,
/// with as many as they have themselves.
at::Tensor repeated_heads(const at::Tensor& tensor, const at::Tensor& query);
at::Tensor summed_heads(const at::Tensor& grad, const at::Tensor& tensor);

/// The output and the logarithm of a block, see Note [Blocks].
std::pair<at::Tensor, at::Tensor> by_products(const BlockOperands& operands);
/// Its share of the gradients.
std::array<at::Tensor, 3> backward_by_products(const BlockOperands& operands, const at::Tensor& grad,
                                               const at::Tensor& output, const at::Tensor& logsumexp);

}  // namespace fsdp::parallel
