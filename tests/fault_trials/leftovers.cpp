#include "fault_trials/leftovers.h"

#include <filesystem>
#include <fstream>

namespace fsdp::test {

std::set<std::string> what_lies_about() {
  std::set<std::string> things;
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);)
    if (const size_t name = line.find("@fsdp"); name != std::string::npos) things.insert(line.substr(name));
  for (const auto& folder : {std::filesystem::path("/dev/shm"), std::filesystem::temp_directory_path()}) {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) things.insert(entry.path());
  }
  return things;
}

}  // namespace fsdp::test
