#pragma once
/// \file
/// Compares the memory of the ranks with the memory of the unsharded model.

#include <string>

#include "memory.h"
#include "training.h"

namespace gpt {

/// Returns a table with a line for the unsharded model and a line for each rank, and an empty string on ranks other
/// than 0. All numbers are measured: `held` is this rank's measurement, and rank 0 trains an unsharded model of the
/// same sizes for one step to measure it. Collective.
std::string memory_table(const Model& model, const HeldBytes& held, int64_t vocabulary, const Arguments& arguments);

}  // namespace gpt
