#include "process_memory.h"

#include <fstream>
#include <stdexcept>
#include <string>

namespace bench {
namespace {

/// Returns the number after `key` in MiB, from a file of lines such as "Pss:  12 kB".
double mebibytes(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    double kilobytes = 0;
    if (word == key && file >> kilobytes) return kilobytes / 1024;
  }
  throw std::runtime_error("expected a line that begins with \"" + key + "\" in " + path +
                           ", which Linux 4.14 and newer write, found none");
}

}  // namespace

double pss_mb() { return mebibytes("/proc/self/smaps_rollup", "Pss:"); }

double peak_resident_mb() { return mebibytes("/proc/self/status", "VmHWM:"); }

}  // namespace bench
