#pragma once
/// \file
/// Optimizers that update flat memory. The class Flat documents what they have in common.

#include <fsdp/adadelta.h>
#include <fsdp/flat_optimizer.h>
#include <fsdp/lbfgs.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#pragma GCC visibility push(default)
namespace fsdp::optim {

/// \addtogroup optimizers
/// \{

/// torch::optim::AdamW with a fused step. Its state has two numbers for each element of this rank's rows, or three with
/// amsgrad. In the formulas of this file t is the step count, g the gradient and p the parameter.
///
///     p <- p (1 - lr weight_decay),  m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g^2,
///     p <- p - lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps)        (Loshchilov and Hutter, 2019, algorithm 2)
///
/// With amsgrad the largest v so far replaces v in the last line (Reddi et al., 2018, algorithm 2).
///
///     fsdp::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(3e-4).weight_decay(0.1));
///     loss.backward();
///     optimizer.step();
class AdamW : public Flat<torch::optim::AdamW, torch::optim::AdamWOptions> {
 public:
  /// See the constructors of Flat.
  using Flat::Flat;
};

/// torch::optim::Adam with a fused step. It differs from AdamW in that weight decay is added to the gradient, g <- g +
/// weight_decay p (Kingma and Ba, 2015, algorithm 1). The state is as large as AdamW's.
class Adam : public Flat<torch::optim::Adam, torch::optim::AdamOptions> {
 public:
  /// See the constructors of Flat.
  using Flat::Flat;
};

/// torch::optim::SGD with a fused step, with momentum, dampening, Nesterov's momentum and weight decay. With momentum
/// its state has one number for each element of this rank's rows; without momentum there is no state.
///
///     d <- g + weight_decay p,  v <- momentum v + (1 - dampening) d  (at first v <- d),
///     p <- p - lr v,  with Nesterov's momentum  p <- p - lr (d + momentum v)       (Sutskever et al., 2013)
class SGD : public Flat<torch::optim::SGD, torch::optim::SGDOptions> {
 public:
  /// See the constructors of Flat.
  using Flat::Flat;
};

/// torch::optim::RMSprop with a fused step. Its state has one number for each element of this rank's rows, one more if
/// centered, and one more with momentum.
///
///     g <- g + weight_decay p,  v <- alpha v + (1 - alpha) g^2,  d <- g / (sqrt(v) + eps)    (Hinton, 2012, lecture 6)
///     centered:  a <- alpha a + (1 - alpha) g,  d <- g / (sqrt(v - a^2) + eps)           (Graves, 2013, equation 38)
///     with momentum:  b <- momentum b + d,  d <- b;    p <- p - lr d
class RMSprop : public Flat<torch::optim::RMSprop, torch::optim::RMSpropOptions> {
 public:
  /// See the constructors of Flat.
  using Flat::Flat;
};

/// torch::optim::Adagrad with a fused step. Its state has one number for each element of this rank's rows; the numbers
/// begin at `initial_accumulator_value` of the constructor's defaults. A parameter gets its state with its first
/// gradient, while torch::optim's Adagrad allocates all state in the constructor.
///
///     g <- g + weight_decay p,  s <- s + g^2,
///     p <- p - lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps)                     (Duchi et al., 2011, figure 1)
class Adagrad : public Flat<torch::optim::Adagrad, torch::optim::AdagradOptions> {
 public:
  /// See the constructors of Flat.
  using Flat::Flat;
};

/// Adadelta with a fused step; torch::optim has no Adadelta. Its state has two numbers for each element of this rank's
/// rows. Results equal those of Python's torch.optim.Adadelta up to rounding:
///
///     g <- g + weight_decay p,  v <- rho v + (1 - rho) g^2,  d <- sqrt(u + eps) / sqrt(v + eps) g,
///     u <- rho u + (1 - rho) d^2,  p <- p - lr d                                 (Zeiler, 2012, algorithm 1)
///
///     fsdp::optim::Adadelta optimizer(model.parameters(), fsdp::optim::AdadeltaOptions(1.0));
///     torch::optim::StepLR schedule(optimizer, /*step_size=*/1, /*gamma=*/0.7);
class Adadelta : public Flat<AdadeltaBase, AdadeltaOptions> {
 public:
  /// See the constructors of Flat.
  using Flat::Flat;
};

/// \}

}  // namespace fsdp::optim
#pragma GCC visibility pop
