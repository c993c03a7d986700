#include "statistics.h"

#include <algorithm>
#include <cmath>

namespace bench {

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Quartiles quartiles(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t from_end = values.size() / 4;
  return {values[from_end], median(values), values[values.size() - 1 - from_end]};
}

double round_to(double value, int digits) {
  const double scale = std::pow(10.0, digits);
  return std::round(value * scale) / scale;
}

}  // namespace bench
