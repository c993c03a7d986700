#pragma once
/// \file
/// A program as C++ over the public API.

#include <string>

#include "program_fuzz/program.h"

namespace fsdp::test::fuzz {

/// A whole source file that includes parts.h; comments say what cannot be said over the public API, e.g. until when a
/// rank is held up.
std::string print_cpp(const Program& program);

}  // namespace fsdp::test::fuzz
