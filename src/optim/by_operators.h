#pragma once
/// \file
/// Optimizer steps on devices other than the CPU, computed by LibTorch's operators.

#include "optim/flat_runs.h"
#include "optim/rules.h"

namespace fsdp::optim {

/// Updates the run's rows and states by LibTorch's operators. Adam, AdamW and SGD use LibTorch's fused operators. The
/// gradients are multiplied by `factor`.
void update_by_operators(const FlatRun& run, const Rule& rule, double factor);

}  // namespace fsdp::optim
