#pragma once
/// \file
/// What it costs to look on: steps that are traced and whose metrics are written.

#include <ATen/core/Tensor.h>

#include <memory>

#include "arguments.h"
#include "step_times.h"
#include "trainee.h"

namespace bench {

/// Writes to a folder of its own, which goes with it.
class StepObserver {
 public:
  explicit StepObserver(const StepArguments& arguments);
  ~StepObserver();
  StepObserver(const StepObserver&) = delete;
  StepObserver& operator=(const StepObserver&) = delete;

  /// A step under a trace, and a line of metrics and an event of TensorBoard about it, whose time counts as the
  /// optimizer's.
  StepTimes take_step(Trainee& trainee, const at::Tensor& batch);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bench
