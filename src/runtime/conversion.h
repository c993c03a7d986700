#pragma once
/// \file
/// What an operator that converts or replaces a tensor would change.

#include <ATen/core/dispatch/Dispatcher.h>

#include <span>

#include "runtime/access_rules.h"

namespace fsdp::runtime {

/// Of the first argument. kNothing: `to` and its kin would return the tensor itself, `set_data` gets the tensor itself.
/// kPrints: what printing a tensor begins with, `to` with exactly the CPU and double.
Conversion conversion_of(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments);

}  // namespace fsdp::runtime
