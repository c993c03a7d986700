#pragma once
/// \file
/// Compares the tensors of two sources.

#include <string>
#include <vector>

#include "source.h"

namespace ckpt {

struct Difference {
  std::string name;
  /// The reason why the tensors cannot be compared, such as "missing in the second" or different shapes. It is empty if
  /// they can be compared.
  std::string misfit;
  /// The largest difference of two elements, as largest_difference in numbers.h defines it.
  double largest = 0;
};

/// Returns one difference for each tensor that is in at least one of the sources, ordered by name. Compares the model's
/// tensors; if `training` is true, also the optimizer's state and the ranks' random states.
std::vector<Difference> compare(Source& a, Source& b, bool training);

}  // namespace ckpt
