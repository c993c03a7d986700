#pragma once
/// \file
/// Compares the hosts for fsdprun --doctor and formats the result. All functions are pure.

#include <string>
#include <vector>

namespace fsdprun {

/// kCompared if a fact should be the same on all hosts, and kShown if it is only printed.
enum class FactKind { kCompared, kShown };

struct Fact {
  std::string name, value;
  FactKind kind = FactKind::kCompared;

  bool operator==(const Fact&) const = default;
};

/// The facts of one node. Nodes with the same version of fsdprun have facts with the same names.
struct HostFacts {
  std::string host;
  std::vector<Fact> facts;

  bool operator==(const HostFacts&) const = default;
};

/// A fact whose value is not the same on all nodes.
struct Difference {
  std::string name;
  /// The values in the order of nodes.
  std::vector<std::string> values;
  /// The nodes whose value differs from the value of more than half of the nodes. If there is no such value, these are
  /// all nodes.
  std::vector<int> odd_nodes;
};

/// The result of measuring all-reduces.
struct Measurement {
  /// Where the ranks are, such as "inside host 0" or "between hosts".
  std::string where;
  int ranks = 0;
  double latency_microseconds = 0;
  /// Megabytes per second that each rank sends in an all-reduce of large tensors.
  double megabytes_per_second = 0;
};

struct Diagnosis {
  std::vector<HostFacts> nodes;
  std::vector<Measurement> measurements;
  /// The reason why ranks could not measure; empty if they could.
  std::string error = {};
};

std::vector<Difference> differences(const std::vector<HostFacts>& nodes);
/// Returns a line such as "ulimit -n: 1024 on node 1 (b), 4096 on the others".
std::string describe(const Difference& difference, const std::vector<HostFacts>& nodes);

/// Returns a table with a column for each node, and the differences below the table.
std::string table(const std::vector<HostFacts>& nodes);
std::string table(const std::vector<Measurement>& measurements);
/// Returns {"nodes": [...], "differences": [...], "measurements": [...], "error": "", "ok": ...}.
std::string json(const Diagnosis& diagnosis);

std::string encode(const HostFacts& facts);
std::string encode(const std::vector<HostFacts>& nodes);
/// The inverse functions of `encode`. They throw std::exception for other text.
HostFacts decode_host(const std::string& text);
std::vector<HostFacts> decode_hosts(const std::string& text);

}  // namespace fsdprun
