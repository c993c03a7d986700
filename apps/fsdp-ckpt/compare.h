#pragma once
/// \file
/// How far the tensors of two sources are apart.

#include <string>
#include <vector>

#include "source.h"

namespace ckpt {

struct Difference {
  std::string name;
  /// What cannot be compared: "missing in the second", other sizes; empty otherwise.
  std::string misfit;
  /// See numbers.h.
  double largest = 0;
};

/// One for each tensor that either has, by name: of the model, with `training` also of the optimizer's state and the
/// ranks' random states.
std::vector<Difference> compare(Source& a, Source& b, bool training);

}  // namespace ckpt
