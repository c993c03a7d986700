#pragma once
/// \file
/// Attention of queries to some of the keys, and how the results of several such blocks become one.

#include <ATen/core/Tensor.h>

#include <array>

#include "parallel/attention_products.h"
#include "parallel/sequence_layout.h"

namespace fsdp::parallel {

/// Note [Blocks]. Attention to a block of keys gives the output and, for each query, the logarithm of the sum of
/// exponentials of its scores. Two blocks become one by means of that logarithm. The backward of a block, given output
/// and logarithm of all blocks, gives exactly the block's share of the gradients: the probabilities are then those of
/// whole rows.
///
/// On the CPU that is LibTorch's flash attention. Where it takes no such tensors (values of another size than keys) and
/// on every device it is done by matrix products, which hold the scores of one block.

/// The output of all blocks that were added, in fp32 or fp64.
class OutputSum {
 public:
  OutputSum(const at::Tensor& query, const at::Tensor& value);
  /// `block` says which queries they are.
  void add(const Block& block, const BlockOperands& operands);

  const at::Tensor& output() const { return output_; }
  /// Minus infinity where a query saw no key; its output is zero.
  const at::Tensor& logsumexp() const { return logsumexp_; }

 private:
  at::Tensor output_, logsumexp_;
};

/// The block's share of the gradients of queries, keys and values. `output` and `logsumexp` are those of all blocks,
/// for the block's queries.
std::array<at::Tensor, 3> backward_of(const BlockOperands& operands, const at::Tensor& grad, const at::Tensor& output,
                                      const at::Tensor& logsumexp);

}  // namespace fsdp::parallel
