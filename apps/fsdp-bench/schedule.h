#pragma once
/// \file
/// `fsdp-bench schedule` shows what each rank of a pipeline does at which time.

#include "arguments.h"

namespace bench {

/// Simulates a step of a schedule and prints it. Throws fsdp::UsageError if the schedule is impossible.
void run_schedule(const ScheduleArguments& arguments);

/// Starts ranks whose stages sleep, and prints the time of a step and its ratio to the time that follows from the
/// schedule. Throws what run_schedule throws, and fsdp::Error if a rank fails.
void measure_schedule(const ScheduleArguments& arguments);

}  // namespace bench
