#pragma once
/// \file
/// What the commands print: tables for people, JSON for programs.

#include <string>
#include <vector>

#include "compare.h"
#include "rewrite.h"

namespace ckpt {

void print_info(const Source& source, bool as_json);
void print_written(const Written& written, bool as_json);
/// Whether all are equal.
bool print_differences(const std::vector<Difference>& differences, bool as_json);
/// Reads all checkpoints of a run's folder, or one, and prints what is wrong with each; returns whether nothing is, and
/// there is one.
bool print_problems(const std::string& path, bool as_json);

}  // namespace ckpt
