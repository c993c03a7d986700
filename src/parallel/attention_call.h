#pragma once
/// \file
/// A call of scaled_dot_product_attention whose tokens are spread over ranks, and the methods that compute it.

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

/// Properties of a call that its forward and its backward need, apart from tensors.
struct AttentionPlan : torch::CustomClassHolder {
  /// Process group of the ring; null if there is no ring.
  std::shared_ptr<ProcessGroup> group;
  /// Subject of the call's collectives, such as "attention of queries [1, 2, 8, 4] and keys [1, 2, 8, 4]". The ranks
  /// compare it, so it has only what must be equal on all ranks.
  std::string name;
  SequenceLayout queries, keys;
  bool is_causal = false;
  double scale = 1;

  int64_t rank() const { return group->rank(); }
  int64_t ranks() const { return group->world_size(); }
  /// Returns the communicator that exchanges the tensors of attention. The first call for a group is collective.
  std::shared_ptr<Communicator> queue() const;
};

/// Note [Outputs that are saved]. When activation checkpointing runs a region again, it stops as soon as it has the
/// tensors that backward needs, possibly inside a Function's save_for_backward. If the Function saved its output
/// itself, the output and its autograd node would then own each other and never be freed. The Functions here therefore
/// save `output.detach()`, another tensor with the same memory.

/// Saves the plan of a call for its backward.
void keep_plan(torch::autograd::AutogradContext& context, const c10::intrusive_ptr<AttentionPlan>& plan);
/// Returns the plan in backward. Throws UsageError if backward itself is recorded (create_graph).
c10::intrusive_ptr<AttentionPlan> kept_plan(torch::autograd::AutogradContext& context);

/// The operands of a call after all checks. They have four dims; dim 2 of queries, keys and values has this rank's
/// tokens.
struct AttentionCall {
  c10::intrusive_ptr<AttentionPlan> plan;
  at::Tensor query, key, value;
  /// Mask for the whole sequences, with four dims; undefined if there is none.
  at::Tensor mask;

  /// Returns the mask's rows for this rank's queries, or nothing if there is no mask.
  std::optional<at::Tensor> own_rows() const;
};

/// Returns the mask's columns for the first `keys` keys of `rank`.
at::Tensor columns_of(const at::Tensor& mask, const AttentionPlan& plan, int64_t rank, int64_t keys);
/// Returns the block's parts of the tensors. `mask` has this rank's rows and the columns of the block's keys, or is
/// undefined.
BlockOperands operands_of(const AttentionPlan& plan, const Block& block, const at::Tensor& query, const at::Tensor& key,
                          const at::Tensor& value, const at::Tensor& mask);

// Each of these functions computes one call by one method and returns the output for this rank's queries. All but
// whole_attention are collective.

/// Passes keys and values around the ring (H. Liu et al., Ring Attention with Blockwise Transformers, 2023). The
/// layouts in the plan say whether each rank has one chunk of the sequence or two (head-tail balance).
at::Tensor ring_attention(const AttentionCall& call);
/// Gathers all keys and values on every rank.
at::Tensor gathered_attention(const AttentionCall& call);
/// Calls LibTorch's attention, because this rank has all tokens. Does not communicate.
at::Tensor whole_attention(const AttentionCall& call);
/// Exchanges all heads of some tokens for some heads of all tokens of the ring's rank, calls `ring` with these, and
/// exchanges the output back (DeepSpeed-Ulysses; S. A. Jacobs et al., 2023). Throws UsageError if the size of `ranks`
/// does not divide the number of heads.
at::Tensor attention_by_heads(const AttentionCall& call, const std::shared_ptr<ProcessGroup>& ranks,
                              const std::function<at::Tensor(const AttentionCall&)>& ring);
/// Passes first the keys and then the values around the ring, and keeps whole rows of scores in memory (S. Li et al.,
/// Sequence Parallelism, 2021).
at::Tensor ring_self_attention(const AttentionCall& call);

}  // namespace fsdp::parallel
