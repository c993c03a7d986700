#include "exit.h"

#include <cstdio>

namespace fsdprun {

void say(const std::string& message) {
  const std::string line = "fsdprun: " + message + "\n";
  fputs(line.c_str(), stderr);
}

}  // namespace fsdprun
