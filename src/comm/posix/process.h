#pragma once
/// \file
/// What the kernel tells about another process of this host.

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <string_view>

#include "comm/posix/descriptor.h"

namespace fsdp {

/// A process of this host, whether a child of this process or not. Thread-safe.
class Process {
 public:
  explicit Process(pid_t number) : number_(number), end_(static_cast<int>(syscall(SYS_pidfd_open, number, 0))) {}

  bool has_ended() const {
    pollfd file{end_.number(), POLLIN, 0};
    return end_.is_open() ? poll(&file, 1, 0) > 0 : is_in_state("ZX");
  }
  /// Returns whether the process exists and is not stopped by a signal.
  bool is_running() const { return is_in_state("RSD"); }
  bool is_stopped() const { return is_in_state("T"); }

 private:
  // Returns whether one of these letters is the kernel's state of the process. X also stands for a process that does
  // not exist.
  bool is_in_state(std::string_view states) const {
    std::ifstream file("/proc/" + std::to_string(number_) + "/stat");
    std::string line;  // "pid (name) state ...", where the name may hold anything
    std::getline(file, line);
    const size_t name_end = line.rfind(") ");
    return states.find(name_end == std::string::npos ? 'X' : line[name_end + 2]) != std::string_view::npos;
  }

  pid_t number_;
  Descriptor end_;  // readable once the process has ended
};

}  // namespace fsdp
