#pragma once
/// \file
/// `fsdp-bench intercept`: what it costs that operators on sharded parameters pass through the library.

#include "arguments.h"

namespace bench {

/// Times operators on a parameter of a sharded module, inside a forward scope and with its group whole, in turns with
/// the same operators on a plain tensor. Prints one line of JSON; times are microseconds per operator. One rank.
void run_intercept(const InterceptArguments& arguments);

}  // namespace bench
