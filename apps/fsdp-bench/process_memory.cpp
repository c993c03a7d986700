#include "process_memory.h"

#include <fstream>
#include <stdexcept>
#include <string>

namespace bench {

double pss_mb() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;) {
    double kilobytes = 0;
    if (word == "Pss:" && file >> kilobytes) return kilobytes / 1024;
  }
  throw std::runtime_error("cannot read Pss from /proc/self/smaps_rollup; expected Linux 4.14 or newer");
}

}  // namespace bench
