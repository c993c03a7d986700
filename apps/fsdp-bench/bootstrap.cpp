#include "bootstrap.h"

#include <algorithm>
#include <random>

#include "statistics.h"

namespace bench {

Interval bootstrap_median(const std::vector<double>& values, double confidence, int64_t resamples, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<double> medians, sample(values.size());
  for (int64_t i = 0; i < resamples; ++i) {
    // The numbers of std::uniform_int_distribution differ between standard libraries, so this code does not use it.
    for (double& value : sample) value = values[random() % values.size()];
    medians.push_back(median(sample));
  }
  std::ranges::sort(medians);
  const auto tail = static_cast<int64_t>(static_cast<double>(resamples) * (1 - confidence) / 2);
  return {.low = medians[static_cast<size_t>(tail)], .high = medians[static_cast<size_t>(resamples - 1 - tail)]};
}

}  // namespace bench
