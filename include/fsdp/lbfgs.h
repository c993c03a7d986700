#pragma once
/// \file
/// LBFGS for sharded parameters.

#include <torch/optim/lbfgs.h>

#pragma GCC visibility push(default)
namespace fsdp::optim {

/// \addtogroup optimizers
/// \{

/// LBFGS for sharded parameters: torch::optim::LBFGS with dot products and norms over the rows of all ranks. A step of
/// torch::optim::LBFGS itself throws UsageError for sharded parameters, because it would use only this rank's rows.
///
/// Constructors, options, `add_param_group`, `zero_grad`, state and files are those of the base class. All parameters
/// must be sharded over the same ranks. The state has at most 2 history_size + 4 numbers for each element of this
/// rank's rows. Without a line search a step has length `lr`; `line_search_fn("strong_wolfe")` searches for a length
/// that meets the strong Wolfe conditions (J. Nocedal and S. Wright, Numerical Optimization, 2006, algorithms 7.4, 3.5
/// and 3.6).
///
/// `step` is collective. `closure` must zero gradients, run forward and backward on this rank's batch, and return this
/// rank's loss. `step` minimises the mean of the ranks' losses, so backward must average gradients: do not call
/// set_gradient_divide_factor. All ranks take the same decisions, because sums over rows have the same bits on every
/// rank (see fsdp::norm). The result equals that of an unsharded run on the batches of all ranks together, up to
/// rounding. `step` returns this rank's first loss. It throws UsageError without a closure, for parameters that are
/// unsharded, tensor-parallel or sharded over different ranks, in a scope or backward, and for an unknown line search.
/// It also throws what the closure and Work::wait throw.
///
///     fsdp::optim::LBFGS optimizer(model.parameters(), torch::optim::LBFGSOptions(1).line_search_fn("strong_wolfe"));
///     optimizer.step([&] {
///       optimizer.zero_grad();
///       auto loss = mse_loss(model(x), y);
///       loss.backward();
///       return loss;
///     });
class LBFGS : public torch::optim::LBFGS {
 public:
  /// Inherits the constructors of torch::optim::LBFGS.
  using torch::optim::LBFGS::LBFGS;
  /// Runs up to LBFGSOptions::max_iter iterations. Collective.
  at::Tensor step(LossClosure closure) override;
};

/// \}

}  // namespace fsdp::optim
#pragma GCC visibility pop
