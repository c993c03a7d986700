#pragma once
/// \file
/// A line search for a step that satisfies the strong Wolfe conditions. Does not communicate.

#include <ATen/core/Tensor.h>

#include <functional>

namespace fsdp::optim {

/// The objective at one step along the direction.
struct Trial {
  double step = 0, loss = 0;
  /// Derivative of the loss with respect to the step.
  double slope = 0;
  /// The gradient at that point, which the search only passes on.
  at::Tensor gradient;
};

struct FoundStep {
  Trial trial;
  int64_t evaluations = 0;
};

/// Searches from `start` (step 0 with a negative slope), beginning with `step`: brackets a step with
///
///     loss(t) <= loss(0) + 1e-4 t slope(0)  and  |slope(t)| <= 0.9 |slope(0)|
///
/// and narrows the bracket by cubic interpolation (J. Nocedal and S. Wright, Numerical Optimization, 2006, algorithms
/// 3.5 and 3.6, formula 3.59), with at most 25 steps, or until the bracket is shorter than `tolerance` divided by
/// `largest`, the direction's largest element. Makes the decisions of torch::optim::LBFGS with "strong_wolfe": if the
/// interpolation twice stays near an end of the bracket, it moves a tenth of the bracket away from that end.
FoundStep search_strong_wolfe(const Trial& start, double step, double largest, double tolerance,
                              const std::function<Trial(double step)>& evaluate);

}  // namespace fsdp::optim
