#pragma once
/// \file
/// Explains what ranks communicate along each axis of the mesh in a step.

#include <fsdp/explain.h>

#include <string>

#include "arguments.h"
#include "axes.h"

namespace gpt {

/// Returns text that shows the mesh and says, for each axis with more than one rank, how many bytes a rank sends at
/// most in a step. `rows` is the explanation of the model that this rank has. A pure function; docs/axes.md has the
/// formulas.
std::string axes_text(const AxisSizes& sizes, const fsdp::Explanation& rows, const Arguments& arguments);

}  // namespace gpt
