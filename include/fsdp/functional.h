#pragma once
/// \file
/// Collectives that autograd goes through: what parallelism of one's own is built from.

#include <fsdp/process_group.h>

#include <memory>

#pragma GCC visibility push(default)
namespace fsdp::functional {

/// \addtogroup communication
/// \{

/// \name Collectives that autograd goes through
/// Each is a linear map of the tensors of all ranks of `group` (null: the default one; of a mesh
/// `mesh.process_group("sequence")`), and its backward is the transposed map, which is a collective too. The objective
/// is the sum of the losses of all ranks of the group: a rank's gradient is that of this sum with respect to its own
/// tensor. Divide the loss by the number of ranks where each of them computes the same one.
///
/// Collective: every rank calls them in one order, with a tensor of the same sizes, dtype and device, and its backward
/// goes through them in one order, so each rank's loss must depend on the same calls. They have an order of their own
/// in the group, beside the gathers and reductions of sharded parameters. One thread at a time. Tensors lie on the CPU
/// or on a device that the group's backend moves, need not be contiguous, and have any dtype, but those of
/// reduce_scatter are floating point. Autograd keeps no tensor for backward, and any number of derivatives can be
/// taken. With one rank each of them gives its argument back.
///
/// Throw UsageError before anything is communicated for an undefined tensor, a dim that is not there and one that
/// cannot be cut into as many equal parts as there are ranks; Mismatch if the ranks' calls differ; and what Work::wait
/// throws.
/// \{

/// The sum over all ranks, on every rank. Its backward sums the gradients of all ranks.
///
///     auto total = fsdp::functional::all_reduce(partial, axis);
[[nodiscard]] at::Tensor all_reduce(const at::Tensor& input, const std::shared_ptr<ProcessGroup>& group = nullptr);

/// The ranks' tensors, one behind the other along `dim`, on every rank. Its backward is a reduce_scatter.
///
///     auto keys = fsdp::functional::all_gather(own_keys, 1, axis);  // [batch, ranks * length, ...]
[[nodiscard]] at::Tensor all_gather(const at::Tensor& input, int64_t dim,
                                    const std::shared_ptr<ProcessGroup>& group = nullptr);

/// This rank's part of the sum over all ranks, which is cut into equal parts along `dim`. Its backward is an
/// all_gather.
[[nodiscard]] at::Tensor reduce_scatter(const at::Tensor& input, int64_t dim,
                                        const std::shared_ptr<ProcessGroup>& group = nullptr);

/// Cuts the tensor into equal parts along `split_dim`, gives rank r part r, and joins the parts that the ranks gave
/// this one along `concat_dim`. Its backward is the same with the dims exchanged.
///
///     // From all heads of some tokens to all tokens of some heads: [batch, tokens, heads, size].
///     auto queries = fsdp::functional::all_to_all(own_queries, 2, 1, axis);
[[nodiscard]] at::Tensor all_to_all(const at::Tensor& input, int64_t split_dim, int64_t concat_dim,
                                    const std::shared_ptr<ProcessGroup>& group = nullptr);

/// The tensor of the rank `by` places before this one; the ranks form a ring, and `by` may be negative. Its backward
/// goes round the other way.
///
///     auto previous = fsdp::functional::shift(block, 1, axis);
[[nodiscard]] at::Tensor shift(const at::Tensor& input, int64_t by = 1,
                               const std::shared_ptr<ProcessGroup>& group = nullptr);

/// \}

/// \name What every rank has alike, and parts of it
/// As above, but for tensors that are the same on every rank: each rank computes the same loss, which counts once.
/// These lie around the parts of a layer of which each rank has one (M. Shoeybi et al., Megatron-LM, 2019, section 3).
/// \{

/// The tensor itself; the gradients of all ranks are summed. It goes in front of the parts of a layer (Megatron-LM's
/// f).
[[nodiscard]] at::Tensor copy_to_ranks(const at::Tensor& input, const std::shared_ptr<ProcessGroup>& group = nullptr);

/// The sum over all ranks; its gradient goes to each of them as it is. It goes behind the parts of a layer
/// (Megatron-LM's g).
[[nodiscard]] at::Tensor reduce_from_ranks(const at::Tensor& input,
                                           const std::shared_ptr<ProcessGroup>& group = nullptr);

/// This rank's part of what every rank has, which is cut into equal parts along `dim`; its backward joins the
/// gradients.
[[nodiscard]] at::Tensor scatter_to_ranks(const at::Tensor& input, int64_t dim,
                                          const std::shared_ptr<ProcessGroup>& group = nullptr);

/// The parts of all ranks, joined along `dim`; its backward gives each rank its part of the gradient.
[[nodiscard]] at::Tensor gather_from_ranks(const at::Tensor& input, int64_t dim,
                                           const std::shared_ptr<ProcessGroup>& group = nullptr);

/// \}

/// \}

}  // namespace fsdp::functional
#pragma GCC visibility pop
