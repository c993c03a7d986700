#pragma once
/// \file
/// What ranks tell each other about the stages of a pipeline before they save or load them together.

#include <torch/optim/optimizer.h>

#include "state/model_tensors.h"
#include "state/ranks.h"

namespace fsdp::state {

/// Fills `elsewhere` with what other ranks' stages have, and lets the lowest rank write what several ranks have. Does
/// nothing with tensors that are not of a pipeline. Collective. Throws UsageError on all ranks if two stages have
/// different tensors of one name, or if the optimizers have different numbers of parameter groups.
void join_stages(ModelTensors& tensors, const torch::optim::Optimizer* optimizer, const Ranks& ranks);

}  // namespace fsdp::state
