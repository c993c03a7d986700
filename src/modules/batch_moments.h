#pragma once
/// \file
/// Mean and variance of a batch that is split over ranks, for batch normalisation.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdp::modules {

/// Statistics of each channel (index of dim 1) of a batch, on the batch's device. They are fp64, so that merging them
/// loses little precision.
struct Moments {
  at::Tensor mean;        // sizes [channels]
  at::Tensor deviations;  // sizes [channels]; the sums of squared distances from the mean
  at::Tensor count;       // 0 dims; the number of values per channel

  /// Returns the biased variance of each channel.
  at::Tensor variance() const { return deviations / count; }
};

/// Returns the dtype in which batches of `dtype` are summed and normalised.
inline c10::ScalarType computed_in(c10::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

/// Returns the number of values per channel, which is 0 for an empty batch.
int64_t values_per_channel(const at::Tensor& batch);

/// Returns the statistics of this rank's batch.
Moments moments_of(const at::Tensor& batch);
/// Returns the moments as one tensor of sizes [2 * channels + 1], which this rank sends to the others.
at::Tensor packed(const Moments& moments);
/// Returns the moments of the batches of all ranks together. `of_ranks` has their packed moments, of sizes [world size,
/// 2 * channels + 1]. They are merged in rank order by the formula for two samples of any sizes (T. F. Chan, G. H.
/// Golub and R. J. LeVeque, Updating Formulae and a Pairwise Algorithm for Computing Sample Variances, 1979, (2.1)),
/// which never subtracts large sums from one another.
Moments merged(const at::Tensor& of_ranks);

}  // namespace fsdp::modules
