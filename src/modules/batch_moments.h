#pragma once
/// \file
/// Mean and variance of a batch that is split over ranks.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdp::modules {

/// Statistics of each channel (index of dim 1) of a batch, in fp64 on the batch's device for exact merging.
struct Moments {
  at::Tensor mean;        // sizes [channels]
  at::Tensor deviations;  // sizes [channels]; sums of squared distances from the mean
  at::Tensor count;       // scalar; number of values per channel

  at::Tensor variance() const { return deviations / count; }
};

/// The dtype in which batches of `dtype` are summed and normalised.
inline c10::ScalarType computed_in(c10::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

/// Number of values per channel; 0 for an empty batch.
int64_t values_per_channel(const at::Tensor& batch);

Moments moments_of(const at::Tensor& batch);
/// The message to other ranks, of sizes [2 * channels + 1].
at::Tensor packed(const Moments& moments);
/// Merges the packed moments of all ranks, [world size, 2 * channels + 1], in rank order. The formula for two samples
/// of any sizes (T. F. Chan, G. H. Golub and R. J. LeVeque, Updating Formulae and a Pairwise Algorithm for Computing
/// Sample Variances, 1979, (2.1)) never subtracts large sums from one another.
Moments merged(const at::Tensor& of_ranks);

}  // namespace fsdp::modules
