#pragma once
/// \file
/// LBFGS over all rows of all ranks.

#include <torch/optim/lbfgs.h>

#pragma GCC visibility push(default)
namespace fsdp::optim {

/// \addtogroup optimizers
/// \{

/// torch::optim::LBFGS, whose dot products and norms are over all rows of all ranks. Torch's own is refused on rows, of
/// which it would take this rank's alone.
///
/// Constructors, options, `add_param_group`, `zero_grad`, state and files are those of the base class. It takes
/// parameters of models that are sharded over the same ranks, and no other tensors. The state's vectors are this rank's
/// rows: 2 history_size + 4 numbers for each of the rows' elements at most. Without a line search it steps by `lr`,
/// with `line_search_fn("strong_wolfe")` as far as the strong Wolfe conditions allow (J. Nocedal and S. Wright,
/// Numerical Optimization, 2006, algorithms 7.4, 3.5 and 3.6).
///
/// `step` is collective: `closure` zeroes gradients, runs forward on this rank's batch and backward, and returns this
/// rank's loss. The mean over the ranks is what is minimised, as gradients are averaged, so set_gradient_divide_factor
/// must not be set. Every rank decides alike, because sums over rows have the same bits on every rank (see
/// fsdp::norm); so the result is that of the unsharded run on the joined batch up to rounding. Returns the first loss
/// of this rank. Throws UsageError without a closure, for parameters that are not sharded or over different ranks, in a
/// scope or backward, and for another line search; what the closure and Work::wait throw.
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
  /// As torch::optim::LBFGS's constructors.
  using torch::optim::LBFGS::LBFGS;
  /// One step of up to LBFGSOptions::max_iter iterations, see above. Collective.
  at::Tensor step(LossClosure closure) override;
};

/// \}

}  // namespace fsdp::optim
#pragma GCC visibility pop
