#pragma once
/// \file
/// `fsdp-bench schedule` shows when the ranks of a pipeline do what.

#include "arguments.h"

namespace bench {

/// Simulates a step of a schedule and prints it. Throws fsdp::UsageError if the schedule is impossible.
void run_schedule(const ScheduleArguments& arguments);

/// Starts ranks whose stages sleep, and prints the time of a step and its ratio to the time by the formula. Throws what
/// run_schedule throws, and fsdp::Error if a rank fails.
void measure_schedule(const ScheduleArguments& arguments);

}  // namespace bench
