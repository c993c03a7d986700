#pragma once
/// \file
/// `fsdp-bench schedule`: what the ranks of a pipeline do when.

#include "arguments.h"

namespace bench {

/// Simulates a step of a schedule and prints it. Throws fsdp::UsageError for a schedule that cannot be.
void run_schedule(const ScheduleArguments& arguments);

/// Starts ranks whose stages sleep and prints how long a step of the schedule takes them, by the time of the formula.
/// Throws what run_schedule throws, and fsdp::Error if a rank fails.
void measure_schedule(const ScheduleArguments& arguments);

}  // namespace bench
