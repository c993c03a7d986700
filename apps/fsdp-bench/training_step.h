#pragma once
/// \file
/// Runs and times one training step of one rank.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "arguments.h"
#include "step_times.h"
#include "trainee.h"

namespace bench {

/// Number of steps that only warm up.
constexpr int64_t kWarmUpSteps = 2;

struct Step {
  StepTimes times;
  /// Loss of this rank's part of the batch.
  at::Tensor loss;
};

/// Returns this rank's part of the joined batch of a step: token numbers of shape (batch, seq + 1). They are the same
/// for all engines and devices.
at::Tensor batch_of(const StepArguments& arguments, int64_t step, c10::Device device);

/// Runs a step that predicts each token of `batch` from the tokens before it. With a pipeline, all time of forward and
/// backward counts as backward. The time of `after_backward` is not counted. On a GPU, the times are measured by events
/// on the current stream, and the function waits until the GPU has finished the step. Collective for sharded trainees.
Step train_step(Trainee& trainee, const at::Tensor& batch, const std::function<void()>& after_backward = [] {});

/// Returns the median of the values without those of the warm-up steps.
double median_after_warm_up(const std::vector<double>& values);

}  // namespace bench
