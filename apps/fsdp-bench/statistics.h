#pragma once
/// \file
/// Medians, quartiles and rounding for printed results.

#include <vector>

namespace bench {

/// Returns the median; for an even number of values it is the mean of the middle two. `values` must not be empty.
double median(std::vector<double> values);

struct Quartiles {
  double low = 0, middle = 0, high = 0;
};

/// Returns the quartiles. If a quartile lies between two values, it is the value that is nearer to the median. `values`
/// must not be empty.
Quartiles quartiles(std::vector<double> values);

double round_to(double value, int digits);

}  // namespace bench
