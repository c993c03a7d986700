#pragma once
/// \file
/// Random programs.

#include <vector>

#include "program_fuzz/program.h"

namespace fsdp::test::fuzz {

/// What programs are drawn from.
struct Choice {
  std::vector<std::string> backends{"shm", "gloo"};
  std::vector<int> world_sizes{2, 3, 4};
  std::vector<Kind> without = {};  ///< kinds of statements that are left out
};

/// The program with this seed; the same one everywhere.
Program generate(uint64_t seed, const Choice& choice);

}  // namespace fsdp::test::fuzz
