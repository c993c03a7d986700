#pragma once
/// \file
/// What processes may leave behind on a host.

#include <set>
#include <string>

namespace fsdp::test {

/// Names of abstract Unix sockets of fsdp's, and of files in /dev/shm and the folder for temporary files.
std::set<std::string> what_lies_about();

}  // namespace fsdp::test
