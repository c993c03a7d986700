#pragma once
/// \file
/// Norms, sums and questions about sharded tensors, over all ranks.

#include <ATen/core/Tensor.h>
#include <fsdp/group.h>

#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup optimizers
/// \{

/// \name Norms, sums and questions over all ranks
/// What an optimizer or a clipping rule of your own computes of all rows; docs/precision.md shows some.
///
/// `tensors`: parameters of sharded models, inside scopes or outside, gradients of rows as backward leaves them in
/// `.grad`, and what element-wise operators made of both, such as `p.grad().pow(2)`; real numbers. An undefined one
/// counts as zeros, and `any` and `all` leave it out. One that is not sharded is taken to be the same on every rank and
/// counts once; for numbers that differ between ranks use fsdp::all_reduce or fsdp::mean.
///
/// On the CPU norms and sums of all elements have the same bits for any number of ranks, any groups and any cut of the
/// rows, because values are summed in fp64 over each row of dim 0, which one rank has whole, in an order given by the
/// row's length, and the rows' sums are added as integers (U. Kulisch and W. Miranker, The Arithmetic of the Digital
/// Computer, 1986). On other devices LibTorch sums the rows. Rows in their own order and of floating dtypes are not
/// copied; ranks exchange 552 bytes for a norm and 1,104 for a sum.
///
/// Collective: every rank calls it with its tensors of the same parameters. One thread. Throw UsageError for a view of
/// a sharded tensor, for tensors that lie on different ranks and for complex ones, Mismatch if the ranks' calls differ,
/// and what Work::wait throws.
///
/// Rows that are shorter than those of dim 0 (see LocalRowRange) are summed one by one, too. How long they are depends
/// on the number of ranks, and so may the last bits.
/// \{

/// (sum |v|^p)^(1/p) over all elements of all tensors, the largest |v| for p = infinity. Throws UsageError unless
/// p > 0.
///
///     const double distance = fsdp::norm({gpt->head->weight, gpt->head->bias});
[[nodiscard]] double norm(const std::vector<at::Tensor>& tensors, double p = 2.0);
/// Of the parameters under `model`, a tied one once.
[[nodiscard]] double norm(const Group& model, double p = 2.0);

/// The norm of each tensor, in one exchange: those of layers that LARS and LAMB ask for.
///
///     const auto norms = fsdp::norms(model.parameters());  // norms[i] belongs to parameters()[i]
[[nodiscard]] std::vector<double> norms(const std::vector<at::Tensor>& tensors, double p = 2.0);

/// The sum of all elements of all tensors.
///
///     const auto numel = c10::multiply_integers(fsdp::global_sizes(weight));
///     const double mean = fsdp::sum({weight}) / static_cast<double>(numel);
[[nodiscard]] double sum(const std::vector<at::Tensor>& tensors);
/// Of the parameters under `model`, a tied one once.
[[nodiscard]] double sum(const Group& model);

/// The sum along some dims of the whole tensor, as `tensor.sum(dims, keepdim)` where nothing is sharded: a new tensor
/// of its dtype (int64 of integers and bool), whole on every rank, without autograd. Rows are summed in fp64. Beside
/// rows each rank uses its part of the result, so that `update.div_(fsdp::sum(update * update, {1}, true).sqrt())`
/// divides each row by its norm. Ranks exchange 8 bytes for each element of the result.
///
///     const auto of_columns = fsdp::sum(p.grad().pow(2), {0}, true) / fsdp::global_sizes(p)[0];  // Adafactor's
[[nodiscard]] at::Tensor sum(const at::Tensor& tensor, at::IntArrayRef dims, bool keepdim = false);

/// Whether an element of a tensor is not zero. A step that one rank skips is a step that all skip:
///
///     if (fsdp::any({p.grad().isnan()})) optimizer.zero_grad();  // on every rank or on none
[[nodiscard]] bool any(const std::vector<at::Tensor>& tensors);
/// Whether no element of a tensor is zero.
///
///     const bool usable = fsdp::all({p.grad().isfinite()});
[[nodiscard]] bool all(const std::vector<at::Tensor>& tensors);

/// \}

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
