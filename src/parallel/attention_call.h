#pragma once
/// \file
/// A call of scaled_dot_product_attention whose tokens are spread over ranks, and the ways to carry it out.

#include <ATen/core/Tensor.h>
#include <fsdp/process_group.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "parallel/attention_block.h"
#include "parallel/sequence_layout.h"

namespace fsdp::parallel {

/// What forward and backward of a call have in common beside tensors.
struct AttentionPlan : torch::CustomClassHolder {
  /// Of the ring, or null where it is one rank.
  std::shared_ptr<ProcessGroup> group;
  /// For fingerprints, so what ranks must have alike: "attention of queries [1, 2, 8, 4] and keys [1, 2, 8, 4]".
  std::string name;
  SequenceLayout queries, keys;
  bool is_causal = false;
  double scale = 1;

  int64_t rank() const { return group->rank(); }
  int64_t ranks() const { return group->world_size(); }
  /// The communicator that exchanges its tensors. The first call for a group is collective.
  std::shared_ptr<Communicator> order() const;
};

/// Note [Outputs that are saved]. A segment of activation checkpointing ends its second run in the middle of a
/// Function's saving. If that Function saved its very output, whose node it is, the two would own each other from then
/// on. So what is saved is another tensor over the same memory.

/// Keeps the plan of a call for its backward.
void keep_plan(torch::autograd::AutogradContext& context, const c10::intrusive_ptr<AttentionPlan>& plan);
/// Returns the plan in backward. Throws UsageError where backward is to be differentiated.
c10::intrusive_ptr<AttentionPlan> kept_plan(torch::autograd::AutogradContext& context);

/// Checked operands: four dims, of which dim 2 has this rank's tokens.
struct AttentionCall {
  c10::intrusive_ptr<AttentionPlan> plan;
  at::Tensor query, key, value;
  /// For the whole sequence, with four dims, or undefined.
  at::Tensor mask;

  /// The mask's rows of this rank's queries.
  std::optional<at::Tensor> own_rows() const;
};

/// The columns of a mask of keys that a rank has: the first `keys` of them.
at::Tensor columns_of(const at::Tensor& mask, const AttentionPlan& plan, int64_t rank, int64_t keys);
/// The parts of tensors that a block takes. `mask` has this rank's rows and the columns of the block's keys, or is
/// undefined.
BlockOperands operands_of(const AttentionPlan& plan, const Block& block, const at::Tensor& query, const at::Tensor& key,
                          const at::Tensor& value, const at::Tensor& mask);

/// Keys and values go round (H. Liu et al., Ring Attention with Blockwise Transformers, 2023), with head-tail balance
/// where the layouts have it.
at::Tensor ring_attention(const AttentionCall& call);
/// Every rank gathers all keys and values.
at::Tensor gathered_attention(const AttentionCall& call);
/// LibTorch's, where one rank has all tokens.
at::Tensor whole_attention(const AttentionCall& call);
/// From all heads of some tokens to all tokens of some heads, those that a rank of a ring has, over which `ring` then
/// attends; and back (DeepSpeed-Ulysses; S. A. Jacobs et al., 2023). Throws UsageError where the ranks do not divide
/// the heads.
at::Tensor attention_by_heads(const AttentionCall& call, const std::shared_ptr<ProcessGroup>& ranks,
                              const std::function<at::Tensor(const AttentionCall&)>& ring);
/// Keys go round, then values; whole rows of scores are in memory (S. Li et al., Sequence Parallelism, 2021).
at::Tensor ring_self_attention(const AttentionCall& call);

}  // namespace fsdp::parallel
