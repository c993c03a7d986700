#pragma once
/// \file
/// Metrics of training steps.

#include <fsdp/group.h>
#include <fsdp/scalar_log.h>
#include <fsdp/traffic.h>

#include <chrono>
#include <cstdint>
#include <string>

namespace frame {

/// The number of operations that the training of a token takes, and the hardware's peak.
///
/// Note [MFU]. Model FLOPs utilisation is the fraction of the hardware's peak that the model's own operations use: the
/// tokens per second, times the operations per token, divided by the peak of all ranks. A token takes 6 N + 12 L H Q T
/// operations in a model with N parameters that tokens are multiplied with, L layers of H heads of dimension Q, and T
/// tokens of context. A multiplication and an addition count as two operations. One third of the operations belong to
/// forward and two thirds to backward; recomputation does not count. Source: Chowdhery et al., PaLM: Scaling Language
/// Modeling with Pathways (2022), appendix B.
struct FlopsModel {
  double per_token = 0;     ///< number of operations per token, or 0 if unknown
  double peak_of_rank = 0;  ///< largest number of operations per second of one rank, or 0 if unknown

  /// Returns 6 N + 12 L (H Q) T, where `width` is H Q.
  static double of_transformer_token(int64_t parameters, int64_t layers, int64_t width, int64_t context) {
    return 6.0 * static_cast<double>(parameters) +
           12.0 * static_cast<double>(layers) * static_cast<double>(width) * static_cast<double>(context);
  }
};

/// Logs the metrics of each step: the given scalars, such as the loss; the tokens (or other items) per second; MFU, if
/// the operations are known; the bytes that rank 0 holds, by class; and the bytes that rank 0 sent in the step. If the
/// log is off, nothing is computed.
class StepMetrics {
 public:
  /// `items_per_step` is the number of tokens or samples of all ranks in a step. `items` is their name, e.g. "tokens".
  StepMetrics(fsdp::ScalarLog log, int64_t items_per_step, std::string items, FlopsModel flops = {});

  /// Logs the step that has just ended. `step` is the number of completed steps. Call `leave_out_time` before a step to
  /// exclude time that is not training.
  void note(int64_t step, fsdp::ScalarLog::Scalars scalars, const fsdp::Group& model);
  /// Logs other numbers after `step` steps, such as those of a validation.
  void note_beside(int64_t step, const fsdp::ScalarLog::Scalars& scalars) { log_.write(step, scalars); }
  /// Excludes the time since the last call of `note` from the next step's time.
  void leave_out_time() { last_ = Clock::now(); }
  bool is_on() const { return log_.is_on(); }

 private:
  using Clock = std::chrono::steady_clock;

  fsdp::ScalarLog log_;
  const int64_t items_per_step_;
  const std::string items_;
  const FlopsModel flops_;
  Clock::time_point last_ = Clock::now();
  fsdp::Traffic traffic_;
};

/// Measures the operations per second of several matrix products on this rank, and returns the best result. Ranks that
/// share processors should measure at the same time. On the CPU, LibTorch uses as many threads as it is set to.
double measured_peak_flops(c10::Device device, c10::ScalarType dtype);

}  // namespace frame
