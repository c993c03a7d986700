#pragma once
/// \file
/// Finds the program to start.

#include <string>

namespace fsdprun {

/// Returns the file that a shell would start for `name`: `name` itself if it contains a slash, else the first
/// executable file of that name in the folders of PATH. Throws Exit with a shell's status: 127 if there is no such
/// file, and 126 if it cannot be executed.
std::string find_program(const std::string& name);

}  // namespace fsdprun
