#pragma once
/// \file
/// Mean and variance of a batch that lies on several ranks.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdp::modules {

/// Of each channel (index of dim 1) of a batch. All in fp64 on the batch's device, so that merging loses nothing.
struct Moments {
  at::Tensor mean;        // [channels]
  at::Tensor deviations;  // [channels]: the sum of squared distances from the mean
  at::Tensor count;       // scalar: values of a channel

  at::Tensor variance() const { return deviations / count; }
};

/// The dtype in which batches of `dtype` are summed and normalised.
inline c10::ScalarType computed_in(c10::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

/// How many values each channel has; a batch without samples has none.
int64_t values_per_channel(const at::Tensor& batch);

Moments moments_of(const at::Tensor& batch);
/// As they travel: [2 * channels + 1].
at::Tensor packed(const Moments& moments);
/// Of the batch that the ranks' batches are parts of. `of_ranks`: [world size, 2 * channels + 1]. In rank order, by the
/// formula for two samples of any sizes of T. F. Chan, G. H. Golub and R. J. LeVeque, Updating Formulae and a Pairwise
/// Algorithm for Computing Sample Variances, 1979, (2.1): it never subtracts large sums from one another.
Moments merged(const at::Tensor& of_ranks);

}  // namespace fsdp::modules
