#pragma once
/// \file
/// A limit on the memory that a process may still allocate.

#include <sys/resource.h>

#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>

namespace fsdp::test {

/// Lets this process's data segment grow by at most `bytes`; allocations beyond that limit fail.
inline void limit_data_to_another(int64_t bytes) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line) && !line.starts_with("VmData:")) {
  }
  if (!status) throw std::runtime_error("no VmData");
  const rlimit limit{std::stoull(line.substr(7)) * 1024 + static_cast<rlim_t>(bytes), RLIM_INFINITY};
  if (setrlimit(RLIMIT_DATA, &limit) != 0) throw std::runtime_error("setrlimit");
}

}  // namespace fsdp::test
