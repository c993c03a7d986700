#pragma once
/// \file
/// Norms and sums of sharded tensors over all ranks.

#include <ATen/core/Tensor.h>
#include <fsdp/group.h>

#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup optimizers
/// \{

/// \name Norms and sums over all ranks
/// `tensors`: parameters of sharded models, inside scopes or outside, and gradients of rows as backward leaves them in
/// `.grad`, of floating dtypes; an undefined one counts as zeros. On the CPU the result has the same bits for any
/// number of ranks, any groups and any cut of the rows, because values are summed in fp64 over each row of dim 0, which
/// one rank has whole, in an order given by the row's length, and the rows' sums are added as integers (U. Kulisch and
/// W. Miranker, The Arithmetic of the Digital Computer, 1986). On other devices LibTorch sums the rows. Nothing is
/// copied; ranks exchange 552 bytes for a norm and 1,104 for a sum.
///
/// Collective: every rank calls it with its tensors of the same parameters. One thread. Throw UsageError for a tensor
/// that is not sharded, for a view of one and for tensors that lie on different ranks, Mismatch if the ranks' calls
/// differ, and what Work::wait throws.
/// \{

/// (sum |v|^p)^(1/p) over all elements of all tensors, the largest |v| for p = infinity. Throws UsageError unless
/// p > 0.
///
///     const double distance = fsdp::norm({gpt->head->weight, gpt->head->bias});
[[nodiscard]] double norm(const std::vector<at::Tensor>& tensors, double p = 2.0);
/// Of the parameters under `model`, a tied one once.
[[nodiscard]] double norm(const Group& model, double p = 2.0);

/// The sum of all elements of all tensors.
///
///     const auto numel = c10::multiply_integers(fsdp::global_sizes(weight));
///     const double mean = fsdp::sum({weight}) / static_cast<double>(numel);
[[nodiscard]] double sum(const std::vector<at::Tensor>& tensors);
/// Of the parameters under `model`, a tied one once.
[[nodiscard]] double sum(const Group& model);

/// \}

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
