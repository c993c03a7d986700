#include "state/format/host_name.h"

#include <unistd.h>

#include <climits>
#include <cstdlib>

namespace fsdp::state {

std::string host_name() {
  if (const char* given = std::getenv("FSDP_HOST"); given != nullptr && *given != '\0') return given;
  char name[HOST_NAME_MAX + 1] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

}  // namespace fsdp::state
