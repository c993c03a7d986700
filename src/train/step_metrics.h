#pragma once
/// \file
/// What is written down of each training step.

#include <fsdp/group.h>
#include <fsdp/scalar_log.h>
#include <fsdp/traffic.h>

#include <chrono>
#include <cstdint>
#include <string>

namespace fsdp::train {

/// The operations that training a token takes, and those that the hardware could do.
///
/// Note [MFU]. Model FLOPs utilisation is the share of the hardware's peak that the model's own operations take: tokens
/// a second, times operations a token, by the peak of all ranks. A token takes 6 N + 12 L H Q T operations, of a model
/// with N parameters that tokens are multiplied with, L layers of H heads of Q dimensions, and T tokens of context:
/// two for each multiplication and addition, a third of them in forward, two in backward; what is computed again does
/// not count. Source: Chowdhery et al., PaLM: Scaling Language Modeling with Pathways (2022), appendix B.
struct FlopsModel {
  double per_token = 0;     ///< 0: unknown
  double peak_of_rank = 0;  ///< a second; 0: unknown

  /// 6 N + 12 L (H Q) T, where `width` is H Q.
  static double of_transformer_token(int64_t parameters, int64_t layers, int64_t width, int64_t context) {
    return 6.0 * static_cast<double>(parameters) +
           12.0 * static_cast<double>(layers) * static_cast<double>(width) * static_cast<double>(context);
  }
};

/// Writes, for each step: the loss and what else is given, tokens (or what else there are) a second, MFU where the
/// operations are known, bytes that rank 0 holds by class and moved in the step. Costs nothing where the log is off.
class StepMetrics {
 public:
  /// `items_per_step`: tokens or samples, of all ranks; `items`: what they are called, e.g. "tokens".
  StepMetrics(ScalarLog log, int64_t items_per_step, std::string items, FlopsModel flops = {});

  /// After `step` steps. `pause` in between leaves out what is no training.
  void note(int64_t step, ScalarLog::Scalars scalars, const Group& model);
  /// Other numbers of the step, e.g. a validation's.
  void note_beside(int64_t step, const ScalarLog::Scalars& scalars) { log_.write(step, scalars); }
  /// The time from the last step to here is no training time.
  void leave_out_time() { last_ = Clock::now(); }
  bool is_on() const { return log_.is_on(); }

 private:
  using Clock = std::chrono::steady_clock;

  ScalarLog log_;
  const int64_t items_per_step_;
  const std::string items_;
  const FlopsModel flops_;
  Clock::time_point last_ = Clock::now();
  Traffic traffic_;
};

/// Operations a second of this rank's matrix products, measured: the best of some. Ranks that share processors measure
/// at the same time. On the CPU with as many threads as LibTorch has.
double measured_peak_flops(c10::Device device, c10::ScalarType dtype);

}  // namespace fsdp::train
