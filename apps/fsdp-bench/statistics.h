#pragma once
/// \file
/// Numbers for people.

#include <vector>

namespace bench {

/// Of an even number of values, the mean of the middle two. `values` is not empty.
double median(std::vector<double> values);

struct Quartiles {
  double low = 0, middle = 0, high = 0;
};

/// Where a quartile lies between two values, the one nearer to the median. `values` is not empty.
Quartiles quartiles(std::vector<double> values);

double round_to(double value, int digits);

}  // namespace bench
