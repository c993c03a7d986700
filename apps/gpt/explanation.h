#pragma once
/// \file
/// What each axis of the mesh moves in a step, by formulas.

#include <fsdp/explain.h>

#include <string>

#include "arguments.h"
#include "axes.h"

namespace gpt {

/// The mesh, and a line for each axis with more than one rank: the bytes that a rank sends at most in a step. `rows` is
/// the explanation of the model that this rank has. Pure; docs/axes.md has the formulas.
std::string axes_text(const AxisSizes& sizes, const fsdp::Explanation& rows, const Arguments& arguments);

}  // namespace gpt
