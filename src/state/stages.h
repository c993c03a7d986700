#pragma once
/// \file
/// What ranks tell each other of the stages of a pipeline before these are saved or loaded together.

#include <torch/optim/optimizer.h>

#include "state/model_tensors.h"
#include "state/ranks.h"

namespace fsdp::state {

/// Finds out what other stages have, and leaves what several ranks have to the lowest of them to write. Tensors that
/// are not of a pipeline stay as they are. Collective. Throws UsageError on all ranks if two stages have different
/// tensors of one name, and if optimizers have different numbers of parameter groups.
void join_stages(ModelTensors& tensors, const torch::optim::Optimizer* optimizer, const Ranks& ranks);

}  // namespace fsdp::state
