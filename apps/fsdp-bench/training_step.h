#pragma once
/// \file
/// One training step of one rank, timed.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "arguments.h"
#include "step_times.h"
#include "trainee.h"

namespace bench {

/// Steps that only warm up.
constexpr int64_t kWarmUpSteps = 2;

struct Step {
  StepTimes times;
  /// Of this rank's part of the batch.
  at::Tensor loss;
};

/// This rank's part of the joined batch of a step: token numbers, (batch, seq + 1). The same whatever the engine and
/// the device.
at::Tensor batch_of(const StepArguments& arguments, int64_t step, c10::Device device);

/// Predicts each token of `batch` from those before it; through a pipeline all of it is backward's time.
/// `after_backward` is not timed. On a GPU times are between events on the current stream, and the step ends when the
/// GPU has done it. Collective for sharded trainees.
Step train_step(Trainee& trainee, const at::Tensor& batch, const std::function<void()>& after_backward = [] {});

/// The median without the values of the steps that warm up.
double median_after_warm_up(const std::vector<double>& values);

}  // namespace bench
