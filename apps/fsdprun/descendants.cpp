#include "descendants.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "numbers.h"

namespace fsdprun {
namespace {

namespace fs = std::filesystem;

pid_t parent_of(const fs::path& process) {
  std::ifstream file(process / "stat");
  std::string text;
  std::getline(file, text, '\0');
  // The format is "PID (NAME) STATE PARENT ...". NAME may contain any character.
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 4 > text.size()) return 0;
  const std::string rest = text.substr(name_end + 4);
  return parse_number(rest.substr(0, rest.find(' ')), 0).value_or(0);
}

std::vector<pid_t> children_but(pid_t spared) {
  std::vector<pid_t> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    const auto pid = parse_number(entry.path().filename().string(), 1);
    if (pid && *pid != spared && parent_of(entry.path()) == getpid()) found.push_back(*pid);
  }
  return found;
}

}  // namespace

void adopt_orphans() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

std::vector<pid_t> kill_descendants(pid_t spared, std::chrono::milliseconds patience) {
  constexpr std::chrono::milliseconds kStep{5};
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (;;) {
    const std::vector<pid_t> left = children_but(spared);
    for (const pid_t child : left) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, WNOHANG);
    }
    if (left.empty() || std::chrono::steady_clock::now() > deadline) return left;
    std::this_thread::sleep_for(kStep);
  }
}

}  // namespace fsdprun
