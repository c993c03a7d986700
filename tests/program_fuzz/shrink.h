#pragma once
/// \file
/// From a program that goes wrong to a short one.

#include <optional>

#include "program_fuzz/crew.h"

namespace fsdp::test::fuzz {

struct Shrunk {
  Program program;
  Finding finding;
};

/// Simplifies the program as long as the same kind of thing goes wrong, for some minutes at most. Nothing if the
/// program does not go wrong when it runs alone, several times over.
std::optional<Shrunk> shrink(const Program& program, const Finding& finding, const CrewOptions& options);

/// Programs that are simpler by one change, well defined or not; great changes first.
std::vector<Program> simpler(const Program& program);

}  // namespace fsdp::test::fuzz
