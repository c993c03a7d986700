#pragma once
/// \file
/// Optimizers that update flat memory.

#include <torch/arg.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

#include <vector>

namespace fsdp::optim {

/// torch::optim::AdamW with one fused pass over memory instead of a dozen operators for each parameter.
///
/// Constructors, options, groups of options, `add_param_group`, `zero_grad`, state and files are those of the base
/// class, so schedulers take it and each loads what the other saved. It takes rows of sharded parameters, of several
/// models, and plain tensors, in any mixture, and may be made before or after `fully_shard`.
///
/// A step calls LibTorch's fused kernel once per run: a stretch of a group's rows whose parameters have equal options
/// and step counts and whose gradients lie as the rows do, as backward hands them out. Nothing is copied. State is made
/// when a parameter first has a gradient, as parts of blocks that lie as the rows do; `Group::stats().optimizer` counts
/// it, two numbers for each of the rows' elements (three with amsgrad). The result is torch::optim::AdamW's up to
/// rounding:
///
///     p <- p (1 - lr weight_decay),  m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g^2,
///     p <- p - lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps)        (Loshchilov and Hutter, 2019, algorithm 2)
///
/// `step` is not collective, but every rank has to call it; ranks that share memory may have to wait in it for the
/// readers of their rows. `load` takes what the same rank saved with the same number of ranks.
///
/// Errors: UsageError, before anything is written, when `step` is called in a forward scope or a backward, when a
/// gradient or a loaded state has other sizes than the rows, and for plain tensors with gaps in memory. Thread safety:
/// as its base class; groups are locked while their rows are written.
///
///     fsdp::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(3e-4).weight_decay(0.1));
///     loss.backward();
///     optimizer.step();
class AdamW : public torch::optim::AdamW {
 public:
  using torch::optim::AdamW::AdamW;
  at::Tensor step(LossClosure closure = nullptr) override;
  void load(torch::serialize::InputArchive& archive) override;
  /// Bytes of this rank's state, also that of plain tensors, which no group counts.
  int64_t state_bytes() const;
};

/// torch::optim::SGD in the same way: momentum, dampening, Nesterov's momentum, weight decay. With momentum it keeps
/// one number for each of the rows' elements, without it nothing.
///
///     d <- g + weight_decay p,  v <- momentum v + (1 - dampening) d  (at first v <- d),
///     p <- p - lr v,  with Nesterov's momentum  p <- p - lr (d + momentum v)       (Sutskever et al., 2013)
class SGD : public torch::optim::SGD {
 public:
  using torch::optim::SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override;
  void load(torch::serialize::InputArchive& archive) override;
  /// As AdamW's.
  int64_t state_bytes() const;
};

/// Of Adadelta, with the defaults of Python's torch.optim.Adadelta.
struct AdadeltaOptions : torch::optim::OptimizerCloneableOptions<AdadeltaOptions> {
  AdadeltaOptions(double lr = 1.0);  // NOLINT(google-explicit-constructor): as torch::optim's
  TORCH_ARG(double, lr) = 1.0;
  TORCH_ARG(double, rho) = 0.9;
  TORCH_ARG(double, eps) = 1e-6;
  TORCH_ARG(double, weight_decay) = 0;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  friend bool operator==(const AdadeltaOptions& a, const AdadeltaOptions& b);
  double get_lr() const override;
  void set_lr(double lr) override;
};

/// Of one parameter: the running means of the squares of its gradients and of its changes.
struct AdadeltaParamState : torch::optim::OptimizerCloneableParamState<AdadeltaParamState> {
  TORCH_ARG(int64_t, step) = 0;
  TORCH_ARG(at::Tensor, square_avg);
  TORCH_ARG(at::Tensor, acc_delta);

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// Adadelta, which torch::optim does not have, in the same way; what is true of AdamW's steps, state and errors is true
/// of it. It keeps two numbers for each of the rows' elements. The result is that of Python's torch.optim.Adadelta up
/// to rounding:
///
///     g <- g + weight_decay p,  v <- rho v + (1 - rho) g^2,  d <- sqrt(u + eps) / sqrt(v + eps) g,
///     u <- rho u + (1 - rho) d^2,  p <- p - lr d                                 (Zeiler, 2012, algorithm 1)
///
///     fsdp::optim::Adadelta optimizer(model.parameters(), fsdp::optim::AdadeltaOptions(1.0));
///     torch::optim::StepLR schedule(optimizer, /*step_size=*/1, /*gamma=*/0.7);
class Adadelta : public torch::optim::Optimizer {
 public:
  /// Throws UsageError unless lr, eps and weight_decay are at least 0 and rho is from 0 to 1.
  explicit Adadelta(const std::vector<torch::optim::OptimizerParamGroup>& groups, const AdadeltaOptions& defaults = {});
  explicit Adadelta(std::vector<at::Tensor> parameters, const AdadeltaOptions& defaults = {});

  at::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  /// As AdamW's.
  int64_t state_bytes() const;
};

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
  using torch::optim::LBFGS::LBFGS;
  at::Tensor step(LossClosure closure) override;
};

}  // namespace fsdp::optim
