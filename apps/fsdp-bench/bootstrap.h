#pragma once
/// \file
/// How far a median can be trusted.

#include <cstdint>
#include <vector>

namespace bench {

struct Interval {
  double low = 0, high = 0;
};

/// The percentile bootstrap interval of the median: medians of `resamples` samples of the same size, drawn with
/// replacement; a share of (1 - confidence) / 2 of them lies below `low`, as many above `high`. The same values and
/// seed give the same interval. `values` is not empty.
///
///     auto [low, high] = bench::bootstrap_median(ratios);  // 95 %
///
/// B. Efron, R. J. Tibshirani, An Introduction to the Bootstrap, Chapman & Hall 1993, section 13.3.
Interval bootstrap_median(const std::vector<double>& values, double confidence = 0.95, int64_t resamples = 10'000,
                          uint64_t seed = 0);

}  // namespace bench
