#pragma once
/// \file
/// Steps that multiply gradients on the way, so that unscaling and clipping need no pass of their own.

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#pragma GCC visibility push(default)
namespace fsdp::optim {

/// \addtogroup optimizers
/// \{

/// What the element-wise optimizers of fsdp::optim can do beside `step`; torch::optim's cannot.
///
/// A loss scaler that found every gradient finite on every rank gives 1 / scale, and calls no step on any rank
/// otherwise; clipping gives `fsdp::clip_coefficient`; both together their product:
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
  /// The optimizer's `step` as if each gradient were `factor` times what it is. What lies in `.grad` stays, so where a
  /// gradient has the rows' dtype, rows have the bits that multiplying it before `step` would give; in bf16 and fp16
  /// the product is not rounded. On the CPU it takes no memory, elsewhere that of a run's gradients, in bf16 and fp16
  /// that of its rows, gradients and state in fp32.
  ///
  /// Who must call it, and errors: as of `step`; UsageError, too, unless `factor` is finite and at least 0, before
  /// anything is written.
  virtual at::Tensor step_scaled(double factor, torch::optim::Optimizer::LossClosure closure = nullptr) = 0;
};

/// \}

}  // namespace fsdp::optim
#pragma GCC visibility pop
