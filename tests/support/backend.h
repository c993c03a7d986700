#pragma once
/// \file
/// The backend over which the ranks of the tests communicate.

#include <cstdlib>
#include <string>
#include <vector>

#include "comm/core/host_grid.h"

namespace fsdp::test {

/// Returns the value of FSDP_TEST_BACKEND, or "shm" if that variable is not set.
inline std::string test_backend() {
  const char* backend = std::getenv("FSDP_TEST_BACKEND");
  return backend == nullptr ? "shm" : backend;
}

/// Returns, for each rank, the number of the host on which it pretends to run. With the backend "hierarchical" there
/// are two hosts; the first has one rank more if the number of ranks is odd.
inline std::vector<int> test_hosts(int world_size, const std::string& backend = test_backend()) {
  std::vector<int> hosts;
  for (int rank = 0; rank < world_size; ++rank)
    hosts.push_back(backend == "hierarchical" && rank >= (world_size + 1) / 2 ? 1 : 0);
  return hosts;
}

/// Combines the values of all ranks with `add`, in the order in which the library sums: in rank order or, if there are
/// several hosts with equally many ranks, first within each host.
template <class Value, class ValueOf, class Add>
Value add_in_order(const std::vector<int>& hosts, ValueOf&& value_of, Add&& add) {
  std::vector<Value> by_host;
  const bool is_grid = why_no_grid(hosts).empty();
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    Value value = value_of(static_cast<int>(rank));
    if (rank > 0 && (!is_grid || hosts[rank] == hosts[rank - 1]))
      by_host.back() = add(by_host.back(), value);
    else
      by_host.push_back(std::move(value));
  }
  Value total = std::move(by_host.front());
  for (size_t host = 1; host < by_host.size(); ++host) total = add(total, by_host[host]);
  return total;
}

}  // namespace fsdp::test
