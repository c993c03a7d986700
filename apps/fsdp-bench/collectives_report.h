#pragma once
/// \file
/// Formats the results of `fsdp-bench collectives`.

#include <cstdint>
#include <string>
#include <vector>

namespace bench {

/// The times of one collective with one size of message.
struct CollectiveRow {
  std::string collective;
  /// Size of the message; 0 for barriers.
  int64_t bytes = 0;
  int64_t repetitions = 0;
  /// The factor of CollectiveCase::bus_share.
  double bus_share = 0;
  /// Time on each backend, and time of a copy of the same number of bytes; the copy's time is 0 for barriers.
  std::vector<double> microseconds;
  double copy_microseconds = 0;
};

struct CollectivesReport {
  int world = 0;
  std::vector<std::string> backends;
  /// Memory of one rank: the size of its message buffers, and its largest resident set so far, in which shared pages
  /// count fully.
  int64_t buffer_bytes = 0;
  double peak_resident_mb = 0;
  std::vector<CollectiveRow> rows = {};
};

/// Returns the gigabytes (1e9 bytes) per second over the busiest link; 0 for a collective that moves no data.
double bus_bandwidth(const CollectiveRow& row, double microseconds);

/// Returns a table for people.
std::string to_table(const CollectivesReport& report);
/// Returns one line of JSON.
std::string to_json(const CollectivesReport& report);

}  // namespace bench
