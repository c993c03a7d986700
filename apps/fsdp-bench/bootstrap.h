#pragma once
/// \file
/// Computes how far a median can be trusted.

#include <cstdint>
#include <vector>

namespace bench {

struct Interval {
  double low = 0, high = 0;
};

/// Returns the percentile bootstrap interval of the median. The function draws `resamples` samples of the same size
/// with replacement; a share of (1 - confidence) / 2 of their medians lies below `low`, and the same share above
/// `high`. The same values and seed give the same interval. `values` must not be empty.
///
///     auto [low, high] = bench::bootstrap_median(ratios);  // 95 %
///
/// B. Efron, R. J. Tibshirani, An Introduction to the Bootstrap, Chapman & Hall 1993, section 13.3.
Interval bootstrap_median(const std::vector<double>& values, double confidence = 0.95, int64_t resamples = 10'000,
                          uint64_t seed = 0);

}  // namespace bench
