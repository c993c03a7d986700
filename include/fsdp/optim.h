#pragma once
/// \file
/// Optimizers that update flat memory. What is true of all but LBFGS says `Flat`.

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

/// torch::optim::AdamW. Two numbers of state for each of the rows' elements, three with amsgrad. In its formula and
/// those of the others t is the step count, g the gradient, p the parameter.
///
///     p <- p (1 - lr weight_decay),  m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g^2,
///     p <- p - lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps)        (Loshchilov and Hutter, 2019, algorithm 2)
///
/// With amsgrad the largest v so far takes v's place in the last line (Reddi et al., 2018, algorithm 2).
///
///     fsdp::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(3e-4).weight_decay(0.1));
///     loss.backward();
///     optimizer.step();
class AdamW : public Flat<torch::optim::AdamW, torch::optim::AdamWOptions> {
 public:
  /// As those of Flat.
  using Flat::Flat;
};

/// torch::optim::Adam: AdamW whose decay is part of the gradient, g <- g + weight_decay p (Kingma and Ba, 2015,
/// algorithm 1). It keeps as much.
class Adam : public Flat<torch::optim::Adam, torch::optim::AdamOptions> {
 public:
  /// As those of Flat.
  using Flat::Flat;
};

/// torch::optim::SGD: momentum, dampening, Nesterov's momentum, weight decay. With momentum it keeps one number for
/// each of the rows' elements, without it nothing.
///
///     d <- g + weight_decay p,  v <- momentum v + (1 - dampening) d  (at first v <- d),
///     p <- p - lr v,  with Nesterov's momentum  p <- p - lr (d + momentum v)       (Sutskever et al., 2013)
class SGD : public Flat<torch::optim::SGD, torch::optim::SGDOptions> {
 public:
  /// As those of Flat.
  using Flat::Flat;
};

/// torch::optim::RMSprop. It keeps one number for each of the rows' elements, one more if centered and one more with
/// momentum.
///
///     g <- g + weight_decay p,  v <- alpha v + (1 - alpha) g^2,  d <- g / (sqrt(v) + eps)    (Hinton, 2012, lecture 6)
///     centered:  a <- alpha a + (1 - alpha) g,  d <- g / (sqrt(v - a^2) + eps)           (Graves, 2013, equation 38)
///     with momentum:  b <- momentum b + d,  d <- b;    p <- p - lr d
class RMSprop : public Flat<torch::optim::RMSprop, torch::optim::RMSpropOptions> {
 public:
  /// As those of Flat.
  using Flat::Flat;
};

/// torch::optim::Adagrad. It keeps one number for each of the rows' elements, `initial_accumulator_value` of the
/// defaults at first; unlike torch's, which makes it at once, for parameters that have had a gradient.
///
///     g <- g + weight_decay p,  s <- s + g^2,
///     p <- p - lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps)                     (Duchi et al., 2011, figure 1)
class Adagrad : public Flat<torch::optim::Adagrad, torch::optim::AdagradOptions> {
 public:
  /// As those of Flat.
  using Flat::Flat;
};

/// Adadelta, which torch::optim does not have. It keeps two numbers for each of the rows' elements. The result is that
/// of Python's torch.optim.Adadelta up to rounding:
///
///     g <- g + weight_decay p,  v <- rho v + (1 - rho) g^2,  d <- sqrt(u + eps) / sqrt(v + eps) g,
///     u <- rho u + (1 - rho) d^2,  p <- p - lr d                                 (Zeiler, 2012, algorithm 1)
///
///     fsdp::optim::Adadelta optimizer(model.parameters(), fsdp::optim::AdadeltaOptions(1.0));
///     torch::optim::StepLR schedule(optimizer, /*step_size=*/1, /*gamma=*/0.7);
class Adadelta : public Flat<AdadeltaBase, AdadeltaOptions> {
 public:
  /// As those of Flat.
  using Flat::Flat;
};

/// \}

}  // namespace fsdp::optim
#pragma GCC visibility pop
