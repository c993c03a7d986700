#pragma once
/// \file
/// Attention of queries to some of the keys (a block), and the combination of the results of several blocks.

#include <ATen/core/Tensor.h>

#include <array>

#include "parallel/attention_products.h"
#include "parallel/sequence_layout.h"

namespace fsdp::parallel {

/// Note [Blocks]. Attention to a block of keys returns the output and, for each query, the logsumexp: the logarithm of
/// the sum of the exponentials of the query's scores. The outputs of two blocks are combined with weights that follow
/// from their logsumexps. The backward of a block gets the output and the logsumexp of all blocks. It therefore
/// computes probabilities that are normalised over all keys, and returns exactly the block's share of the gradients.
///
/// On the CPU, blocks are computed by LibTorch's flash attention. That kernel does not support values whose last dim
/// differs from the keys' last dim; such blocks, and all blocks on other devices, are computed by matrix products,
/// which keep the scores of one block in memory.

/// Output and logsumexp of all blocks that were added, in fp32 or fp64.
class OutputSum {
 public:
  OutputSum(const at::Tensor& query, const at::Tensor& value);
  /// Adds the attention of `operands`, which are the queries and keys of `block`.
  void add(const Block& block, const BlockOperands& operands);

  const at::Tensor& output() const { return output_; }
  /// Logsumexp of sizes [batch, heads, queries]. It is minus infinity for a query that saw no key, whose output is
  /// zero.
  const at::Tensor& logsumexp() const { return logsumexp_; }

 private:
  at::Tensor output_, logsumexp_;
};

/// Returns the block's share of the gradients of its queries, keys and values. `grad`, `output` and `logsumexp` belong
/// to the block's queries; `output` and `logsumexp` are those of all blocks.
std::array<at::Tensor, 3> backward_of(const BlockOperands& operands, const at::Tensor& grad, const at::Tensor& output,
                                      const at::Tensor& logsumexp);

}  // namespace fsdp::parallel
