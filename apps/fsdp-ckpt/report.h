#pragma once
/// \file
/// Prints the results of the commands: tables for people, JSON for programs.

#include <string>
#include <vector>

#include "compare.h"
#include "rewrite.h"

namespace ckpt {

void print_info(const Source& source, bool as_json);
void print_written(const Written& written, bool as_json);
/// Prints the differences. Returns true if all tensors are equal.
bool print_differences(const std::vector<Difference>& differences, bool as_json);
/// Verifies one checkpoint, or all checkpoints in a run's folder, and prints the problems of each. Returns true if
/// there is at least one checkpoint and none has a problem.
bool print_problems(const std::string& path, bool as_json);

}  // namespace ckpt
