#pragma once
/// \file
/// One training, from the seed to the last test.

#include <functional>
#include <vector>

#include "arguments.h"
#include "data.h"
#include "training.h"

namespace mnist {

struct Run {
  Model model;
  std::vector<EpochResult> epochs;
  /// Of training and tests with their data.
  double seconds = 0;
};

/// Makes the network, shards and trains it as the arguments say; rank 0 prints it and the epochs. `sharded` is called
/// with it before training. Collective.
Run train_and_test(const Arguments& arguments, const Parts& parts,
                   const std::function<void(const Model& model)>& sharded = [](const Model&) {});

}  // namespace mnist
