#pragma once
/// \file
/// What sharding did: bytes that the ranks hold, against the same model unsharded.

#include <string>

#include "memory.h"
#include "training.h"

namespace gpt {

/// A table with a line for each rank and one for the unsharded model; empty but on rank 0. Nothing in it is computed
/// from sizes: `held` is what this rank measured, and rank 0 trains an unsharded model of the same sizes for a step to
/// measure that. Collective.
std::string memory_table(const Model& model, const HeldBytes& held, int64_t vocabulary, const Arguments& arguments);

}  // namespace gpt
