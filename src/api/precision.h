#pragma once
/// \file
/// What a MixedPrecisionPolicy makes of the parameters of groups.

#include <fsdp/options.h>

#include <string>
#include <vector>

#include "api/plan.h"

namespace fsdp {

/// Whether ranks sum gradients in it, and LibTorch's operators compute in it.
bool can_be_summed(at::ScalarType dtype);

/// Throws UsageError if the policy contradicts itself, or cannot be applied to what is under `tree`.
void check_precision(const MixedPrecisionPolicy& policy, const ModuleNode& tree, const std::string& where);

/// Gives each floating-point parameter of the plan its precision. Asks the policy which of them stay as they are.
void set_precision(const MixedPrecisionPolicy& policy, const ModuleNode& tree, std::vector<PlannedGroup>& plan);

}  // namespace fsdp
