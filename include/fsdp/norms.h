#pragma once
/// \file
/// Norms, sums and tests of sharded tensors, over the rows of all ranks.

#include <ATen/core/Tensor.h>
#include <fsdp/group.h>

#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup optimizers
/// \{

/// \name Norms, sums and tests over all ranks
/// These functions are building blocks for optimizers and clipping rules of your own; docs/precision.md has examples.
///
/// `tensors` may be parameters of sharded models, inside or outside scopes, their gradients in `.grad`, and results of
/// element-wise operators on parameters and gradients, such as `p.grad().pow(2)`. Values must be real. An undefined
/// tensor counts as zeros; `any` and `all` skip it. A tensor that is not sharded must be the same on every rank and
/// counts once; use fsdp::all_reduce or fsdp::mean for numbers that differ between ranks.
///
/// On the CPU, norms and sums of all elements have the same bits for any number of ranks and any groups: one rank holds
/// the whole of each row of dim 0 and sums it in fp64 in an order that depends only on the row's length, and the sums
/// of rows are added as integers (U. Kulisch and W. Miranker, The Arithmetic of the Digital Computer, 1986). On other
/// devices LibTorch sums the rows. Floating-point tensors in the memory layout of the rows are not copied. Ranks
/// exchange 552 bytes for a norm and 1,104 for a sum.
///
/// Collective: every rank passes its tensors of the same parameters, from one thread. The functions throw UsageError
/// for a view of a sharded tensor, for tensors that are sharded over different ranks, and for complex tensors; Mismatch
/// if the ranks' calls differ; and what Work::wait throws.
///
/// If a parameter is sharded in rows that are shorter than those of dim 0 (see LocalRowRange), the functions sum these
/// shorter rows. Their length depends on the number of ranks, so the last bits of a sum may depend on it too.
/// \{

/// Returns (sum |v|^p)^(1/p) over all elements v of all tensors; for p = infinity the largest |v|. Throws UsageError
/// unless p > 0.
///
///     const double distance = fsdp::norm({gpt->head->weight, gpt->head->bias});
[[nodiscard]] double norm(const std::vector<at::Tensor>& tensors, double p = 2.0);
/// Returns the norm of all parameters under `model`. A tied parameter counts once.
[[nodiscard]] double norm(const Group& model, double p = 2.0);

/// Returns the norm of each tensor; LARS and LAMB need such norms for layers. Ranks exchange all norms at once.
///
///     const auto norms = fsdp::norms(model.parameters());  // norms[i] belongs to parameters()[i]
[[nodiscard]] std::vector<double> norms(const std::vector<at::Tensor>& tensors, double p = 2.0);

/// Returns the sum of all elements of all tensors.
///
///     const auto numel = c10::multiply_integers(fsdp::global_sizes(weight));
///     const double mean = fsdp::sum({weight}) / static_cast<double>(numel);
[[nodiscard]] double sum(const std::vector<at::Tensor>& tensors);
/// Returns the sum of all elements of all parameters under `model`. A tied parameter counts once.
[[nodiscard]] double sum(const Group& model);

/// Returns the sum of the whole tensor along some dims, like `tensor.sum(dims, keepdim)` of an unsharded tensor. The
/// result is a new tensor of the same dtype (int64 for integers and bool), whole on every rank, without autograd
/// history. Rows are summed in fp64. An operator that combines the result with rows uses this rank's part of the
/// result, so `update.div_(fsdp::sum(update * update, {1}, true).sqrt())` divides each row by its norm. Ranks exchange
/// 8 bytes for each element of the result. Throws UsageError for a tensor-parallel parameter.
///
///     const auto of_columns = fsdp::sum(p.grad().pow(2), {0}, true) / fsdp::global_sizes(p)[0];  // Adafactor's
[[nodiscard]] at::Tensor sum(const at::Tensor& tensor, at::IntArrayRef dims, bool keepdim = false);

/// Returns true if any element of the tensors is nonzero on any rank. All ranks get the same answer, so they can all
/// skip the same steps:
///
///     if (fsdp::any({p.grad().isnan()})) optimizer.zero_grad();  // on every rank or on none
[[nodiscard]] bool any(const std::vector<at::Tensor>& tensors);
/// Returns true if all elements of the tensors are nonzero on all ranks.
///
///     const bool usable = fsdp::all({p.grad().isfinite()});
[[nodiscard]] bool all(const std::vector<at::Tensor>& tensors);

/// \}

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
