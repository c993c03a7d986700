#pragma once
/// \file
/// `fsdp-bench intercept` measures the time that the library adds to operators on sharded parameters.

#include "arguments.h"

namespace bench {

/// Times operators on a parameter of a sharded module, and the same operators on a plain tensor. A forward scope is
/// open, and the parameter's group is unsharded. Prints one line of JSON with times in microseconds per operator. Uses
/// one rank.
void run_intercept(const InterceptArguments& arguments);

}  // namespace bench
