#include "comm/failure/neighbours.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <string_view>

#include "comm/core/text.h"

namespace fsdp {
namespace {

// Returns whether one of these letters is the kernel's state of the process. X also stands for a process that does not
// exist.
bool is_in_state(pid_t process, std::string_view states) {
  std::ifstream file(str_cat("/proc/", process, "/stat"));
  std::string line;  // "pid (name) state ...", where the name may hold anything
  std::getline(file, line);
  const size_t name_end = line.rfind(") ");
  return states.find(name_end == std::string::npos ? 'X' : line[name_end + 2]) != std::string_view::npos;
}

}  // namespace

Neighbours::Neighbours(const std::map<int, pid_t>& processes) {
  for (const auto& [rank, number] : processes)
    processes_[rank] = {number, Descriptor(static_cast<int>(syscall(SYS_pidfd_open, number, 0)))};
}

bool Neighbours::has_ended(int rank) const {
  const auto& [number, end] = processes_.at(rank);
  pollfd file{end.number(), POLLIN, 0};
  return end.is_open() ? poll(&file, 1, 0) > 0 : is_in_state(number, "ZX");
}

bool Neighbours::is_running(int rank) const { return is_in_state(processes_.at(rank).number, "RSD"); }

bool Neighbours::is_stopped(int rank) const {
  const auto found = processes_.find(rank);
  return found != processes_.end() && is_in_state(found->second.number, "T");
}

}  // namespace fsdp
