#pragma once
/// \file
/// A line search for a step that satisfies the strong Wolfe conditions. It does not communicate.

#include <ATen/core/Tensor.h>

#include <functional>

namespace fsdp::optim {

/// The loss and its gradient at one point of the line: the start plus `step` times the direction.
struct Trial {
  double step = 0, loss = 0;
  /// Derivative of the loss with respect to the step.
  double slope = 0;
  /// Gradient with respect to the parameters. The search does not read it.
  at::Tensor gradient;
};

struct FoundStep {
  Trial trial;
  int64_t evaluations = 0;
};

/// Searches for a step t that satisfies
///
///     loss(t) <= loss(0) + 1e-4 t slope(0)  and  |slope(t)| <= 0.9 |slope(0)|
///
/// `start` is the trial at step 0, with a negative slope; `step` is the first step to try. The search finds an interval
/// that contains t and then narrows it by cubic interpolation (J. Nocedal and S. Wright, Numerical Optimization, 2006,
/// algorithms 3.5 and 3.6, formula 3.59). It ends after 25 steps at the latest, or when the interval is shorter than
/// `tolerance` / `largest`, where `largest` is the largest magnitude of the direction's elements. The search makes the
/// same decisions as torch::optim::LBFGS with "strong_wolfe": if two interpolations in a row are near an end of the
/// interval, it moves the step to a tenth of the interval's length away from that end.
FoundStep search_strong_wolfe(const Trial& start, double step, double largest, double tolerance,
                              const std::function<Trial(double step)>& evaluate);

}  // namespace fsdp::optim
