#pragma once
/// \file
/// Runs one training, from the initial values to the last test.

#include <functional>
#include <vector>

#include "arguments.h"
#include "data.h"
#include "training.h"

namespace mnist {

struct Run {
  Model model;
  std::vector<EpochResult> epochs;
  /// Seconds that training and tests took, including the time for loading images.
  double seconds = 0;
};

/// Makes, shards and trains the network as the arguments say. Rank 0 prints the network and the results of the epochs.
/// Calls `sharded` with the sharded model before training. Collective.
Run train_and_test(const Arguments& arguments, const Parts& parts,
                   const std::function<void(const Model& model)>& sharded = [](const Model&) {});

}  // namespace mnist
