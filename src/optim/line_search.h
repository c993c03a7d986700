#pragma once
/// \file
/// How far to go in one direction: a search for a step that satisfies the strong Wolfe conditions. No ranks.

#include <ATen/core/Tensor.h>

#include <functional>

namespace fsdp::optim {

/// The objective at one step along the direction.
struct Trial {
  double step = 0, loss = 0;
  /// The derivative of the loss by the step.
  double slope = 0;
  /// The objective's gradient there; the search only carries it along.
  at::Tensor gradient;
};

struct FoundStep {
  Trial trial;
  int64_t evaluations = 0;
};

/// From `start` (step 0, a negative slope), first at `step`: brackets a step with
///
///     loss(t) <= loss(0) + 1e-4 t slope(0)  and  |slope(t)| <= 0.9 |slope(0)|
///
/// and narrows the bracket by cubic interpolation (J. Nocedal and S. Wright, Numerical Optimization, 2006,
/// algorithms 3.5 and 3.6, formula 3.59), 25 steps at most, or until it is shorter than `tolerance` times `largest`,
/// the direction's largest element. Decides as torch::optim::LBFGS does with "strong_wolfe": where the interpolation
/// stays near an end of the bracket twice, it moves a tenth of the bracket away from it.
FoundStep search_strong_wolfe(const Trial& start, double step, double largest, double tolerance,
                              const std::function<Trial(double step)>& evaluate);

}  // namespace fsdp::optim
