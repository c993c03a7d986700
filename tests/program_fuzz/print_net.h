#pragma once
/// \file
/// The modules of a program as C++.

#include <string>
#include <vector>

#include "program_fuzz/program.h"

namespace fsdp::test::fuzz {

/// The type of a node's module: its parameters are p, its children n and their number.
std::string type_of(const Program& program, int model, int node);

/// The types of these models, and the functions that give inputs and first values.
std::string print_nets(const Program& program, const std::vector<int>& models);

}  // namespace fsdp::test::fuzz
