#pragma once
/// \file
/// Observes steps as --observe asks: traces them and writes their metrics.

#include <ATen/core/Tensor.h>

#include <memory>

#include "arguments.h"
#include "step_times.h"
#include "trainee.h"

namespace bench {

/// Traces steps and writes their metrics to a temporary folder, which the destructor removes.
class StepObserver {
 public:
  explicit StepObserver(const StepArguments& arguments);
  ~StepObserver();
  StepObserver(const StepObserver&) = delete;
  StepObserver& operator=(const StepObserver&) = delete;

  /// Takes a step while a trace records it, and writes its metrics as a line of JSON and an event of TensorBoard. The
  /// time for writing counts as time of the optimizer.
  StepTimes take_step(Trainee& trainee, const at::Tensor& batch);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bench
