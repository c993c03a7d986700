#pragma once
/// \file
/// Optimizer steps that scale gradients on the fly, so that unscaling and clipping need no separate pass.

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#pragma GCC visibility push(default)
namespace fsdp::optim {

/// \addtogroup optimizers
/// \{

/// Interface that the element-wise optimizers of fsdp::optim have in addition to `step`; optimizers of torch::optim do
/// not have it.
///
/// A loss scaler passes 1 / scale as the factor if all gradients of all ranks are finite, and otherwise skips the step
/// on every rank. To clip, pass the result of `fsdp::clip_coefficient`; to do both, pass the product:
///
///     if (auto* ours = dynamic_cast<fsdp::optim::ScaledStep*>(&optimizer)) {
///       ours->step_scaled(1 / scale);
///     } else {
///       multiply_gradients(optimizer, 1 / scale);
///       optimizer.step();
///     }
class ScaledStep {
 public:
  virtual ~ScaledStep() = default;
  /// Steps as if each gradient were multiplied by `factor`; `.grad` itself is not changed. If gradients have the rows'
  /// dtype, the rows get the same bits as after a multiplication before `step`, except that in bf16 and fp16 the
  /// product is not rounded. The step needs no further memory on the CPU. On other devices it needs memory for the
  /// gradients of a run (see Flat), and in bf16 and fp16 for the rows, gradients and state of a run in fp32.
  ///
  /// Every rank must call it, like `step`. Throws what `step` throws, and UsageError, before anything is written,
  /// unless `factor` is finite and at least 0.
  virtual at::Tensor step_scaled(double factor, torch::optim::Optimizer::LossClosure closure = nullptr) = 0;
};

/// \}

}  // namespace fsdp::optim
#pragma GCC visibility pop
