#pragma once
/// \file
/// What `fsdp-bench collectives` prints.

#include <cstdint>
#include <string>
#include <vector>

namespace bench {

/// One collective with one size of message.
struct CollectiveRow {
  std::string collective;
  /// Of the message; 0 for barriers.
  int64_t bytes = 0;
  int64_t repetitions = 0;
  /// See CollectiveCase.
  double bus_share = 0;
  /// For each backend, and of a copy of as many bytes; 0 for barriers.
  std::vector<double> microseconds;
  double copy_microseconds = 0;
};

struct CollectivesReport {
  int world = 0;
  std::vector<std::string> backends;
  /// Of one rank: the buffers of messages, and its largest resident set so far, which counts shared pages whole.
  int64_t buffer_bytes = 0;
  double peak_resident_mb = 0;
  std::vector<CollectiveRow> rows = {};
};

/// Gigabytes (1e9) per second over the busiest link; 0 where nothing is moved.
double bus_bandwidth(const CollectiveRow& row, double microseconds);

/// Lines for people.
std::string to_table(const CollectivesReport& report);
/// One line.
std::string to_json(const CollectivesReport& report);

}  // namespace bench
