#include "start_ranks.h"

#include <fsdp/spawn.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

namespace bench {

bool is_rank() { return std::getenv("RANK") != nullptr; }

void start_ranks(char** argv, int world) {
  fsdp::spawn(
      [argv](int) {
        execv("/proc/self/exe", argv);
        throw std::system_error(errno, std::generic_category(), "cannot run this program again as a rank");
      },
      world);
}

}  // namespace bench
