#pragma once
/// \file
/// `fsdp-bench schedule`: what the ranks of a pipeline do when.

#include "arguments.h"

namespace bench {

/// Simulates a step of a schedule and prints it. Throws fsdp::UsageError for a schedule that cannot be.
void run_schedule(const ScheduleArguments& arguments);

}  // namespace bench
