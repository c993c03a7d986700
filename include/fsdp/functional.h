#pragma once
/// \file
/// Differentiable collectives for parallel layers of your own.

#include <fsdp/process_group.h>

#include <memory>

#pragma GCC visibility push(default)
namespace fsdp::functional {

/// \addtogroup communication
/// \{

/// \name Differentiable collectives
/// Each function is a linear map of the tensors of all ranks of `group` (if null, the default process group). `group`
/// may be an axis of a mesh, such as `mesh.process_group("sequence")`. The backward of a function is the transposed
/// map, which is a collective too. A rank's gradient is the derivative of the sum of all ranks' losses with respect to
/// the rank's own tensor. If all ranks compute the same loss, divide it by the number of ranks.
///
/// Collective: all ranks call the functions in the same order with tensors of the same sizes, dtype and device. Their
/// backwards must run in the same order too, so each rank's loss must depend on the same calls. The calls have a queue
/// of their own, independent of the gathers and reductions of sharded parameters. Only one thread at a time may call
/// the functions. Tensors are on the CPU or a device that the group's backend supports, need not be contiguous, and may
/// have any dtype, except that reduce_scatter needs a floating-point dtype. Autograd saves no tensor for backward, and
/// derivatives of any order work. With one rank each function returns its argument.
///
/// The functions throw UsageError, before anything is communicated, for an undefined tensor, for a dim that does not
/// exist, and for a dim that cannot be split into equal parts for the ranks. They throw Mismatch if the ranks' calls
/// differ, and what Work::wait throws.
/// \{

/// Returns the sum of all ranks' tensors, on every rank. Backward sums the gradients of all ranks.
///
///     auto total = fsdp::functional::all_reduce(partial, axis);
[[nodiscard]] at::Tensor all_reduce(const at::Tensor& input, const std::shared_ptr<ProcessGroup>& group = nullptr);

/// Returns the tensors of all ranks, concatenated along `dim`, on every rank. Backward is a reduce_scatter.
///
///     auto keys = fsdp::functional::all_gather(own_keys, 1, axis);  // [batch, ranks * length, ...]
[[nodiscard]] at::Tensor all_gather(const at::Tensor& input, int64_t dim,
                                    const std::shared_ptr<ProcessGroup>& group = nullptr);

/// Returns this rank's part of the sum of all ranks' tensors; the sum is split into equal parts along `dim`. Backward
/// is an all_gather.
[[nodiscard]] at::Tensor reduce_scatter(const at::Tensor& input, int64_t dim,
                                        const std::shared_ptr<ProcessGroup>& group = nullptr);

/// Splits the tensor into equal parts along `split_dim`, sends part r to rank r, and concatenates the received parts
/// along `concat_dim`. Backward is an all_to_all with the dims exchanged.
///
///     // From all heads of some tokens to all tokens of some heads: [batch, tokens, heads, size].
///     auto queries = fsdp::functional::all_to_all(own_queries, 2, 1, axis);
[[nodiscard]] at::Tensor all_to_all(const at::Tensor& input, int64_t split_dim, int64_t concat_dim,
                                    const std::shared_ptr<ProcessGroup>& group = nullptr);

/// Returns the tensor of the rank that is `by` places before this rank in a ring of all ranks. `by` may be negative.
/// Backward shifts the gradients in the opposite direction.
///
///     auto previous = fsdp::functional::shift(block, 1, axis);
[[nodiscard]] at::Tensor shift(const at::Tensor& input, int64_t by = 1,
                               const std::shared_ptr<ProcessGroup>& group = nullptr);

/// \}

/// \name Differentiable collectives for replicated tensors
/// These functions are for tensors that are equal on all ranks, if all ranks compute the same loss; the loss then
/// counts once, not once for each rank. Use the functions around the parts of a layer that is split over ranks (M.
/// Shoeybi et al., Megatron-LM, 2019, section 3). The rules above apply.
/// \{

/// Returns the tensor; backward sums the gradients of all ranks. Call it before a split layer (Megatron-LM's f).
[[nodiscard]] at::Tensor copy_to_ranks(const at::Tensor& input, const std::shared_ptr<ProcessGroup>& group = nullptr);

/// Returns the sum over all ranks; backward passes the gradient through. Call it after a split layer (Megatron-LM's g).
[[nodiscard]] at::Tensor reduce_from_ranks(const at::Tensor& input,
                                           const std::shared_ptr<ProcessGroup>& group = nullptr);

/// Returns this rank's part of a replicated tensor, which is split into equal parts along `dim`; backward concatenates
/// the gradients of all ranks.
[[nodiscard]] at::Tensor scatter_to_ranks(const at::Tensor& input, int64_t dim,
                                          const std::shared_ptr<ProcessGroup>& group = nullptr);

/// Concatenates the parts of all ranks along `dim`; backward returns this rank's part of the gradient.
[[nodiscard]] at::Tensor gather_from_ranks(const at::Tensor& input, int64_t dim,
                                           const std::shared_ptr<ProcessGroup>& group = nullptr);

/// \}

/// \}

}  // namespace fsdp::functional
#pragma GCC visibility pop
