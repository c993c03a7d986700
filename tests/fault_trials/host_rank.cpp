#include "fault_trials/host_rank.h"

#include <c10/util/Exception.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <mutex>
#include <string>

#include "comm/core/fault_point.h"
#include "fault_trials/training.h"

namespace fsdp::test {
namespace {

std::string variable_of_host(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}
int number_of_host(const char* name) { return std::atoi(variable_of_host(name).c_str()); }

// What the hook of this process needs to know.
struct HostFault {
  std::string fault, point;
  int passage = 0;
  std::map<std::string, int> passages;
  std::mutex mutex;  // points may be passed in several threads
} host_fault;

void meet_host_fault() {
  std::cout << "lost here" << std::endl;
  if (host_fault.fault == "rank") raise(SIGKILL);
  if (host_fault.fault == "launcher") kill(getppid(), SIGKILL);
  if (host_fault.fault == "link" && std::system("ip link set wire down") != 0)
    std::cout << "the link stays" << std::endl;
}

void pass_point_of_host(const char* place) {
  const std::lock_guard lock(host_fault.mutex);
  if (++host_fault.passages[place] == host_fault.passage && host_fault.point == place) meet_host_fault();
}

}  // namespace

int train_as_rank_of_a_host() {
  if (number_of_host("RANK") == number_of_host("HOST_FAULT_RANK")) {
    host_fault.fault = variable_of_host("HOST_FAULT");
    host_fault.point = variable_of_host("HOST_FAULT_POINT");
    host_fault.passage = number_of_host("HOST_FAULT_PASSAGE");
  }
  on_fault_point = pass_point_of_host;
  try {
    const auto hash = train({.backend = "hierarchical",
                             .rank = number_of_host("RANK"),
                             .world_size = number_of_host("WORLD_SIZE"),
                             .timeout = std::chrono::milliseconds(number_of_host("HOST_TIMEOUT_MS"))},
                            [](const std::string&) {});
    const std::lock_guard lock(host_fault.mutex);
    for (const auto& [point, passages] : host_fault.passages)
      std::cout << "passed " << passages << " " << point << '\n';
    std::cout << "hash " << hash << std::endl;
    return 0;
  } catch (const c10::Error& error) {
    std::cout << error.what_without_backtrace() << std::endl;
  } catch (const std::exception& error) {
    std::cout << error.what() << std::endl;
  }
  return 1;
}

}  // namespace fsdp::test
