#pragma once
/// \file
/// Before the ranks of a pipeline save or load their stages together, they tell each other which tensors they have.

#include <torch/optim/optimizer.h>

#include "state/model_tensors.h"
#include "state/ranks.h"

namespace fsdp::state {

/// Fills tensors.elsewhere with the names that only other ranks have. If several ranks would write the same rows, only
/// the lowest of them writes the rows: the others get an empty `share`. Does nothing unless tensors.are_of_stages is
/// true. Collective. Throws UsageError on all ranks if two stages have a tensor of the same name, or if the optimizers
/// have different numbers of parameter groups.
void join_stages(ModelTensors& tensors, const torch::optim::Optimizer* optimizer, const Ranks& ranks);

}  // namespace fsdp::state
