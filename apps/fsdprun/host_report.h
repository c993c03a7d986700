#pragma once
/// \file
/// What fsdprun --doctor says of the hosts: pure, apart from how the facts are found.

#include <string>
#include <vector>

namespace fsdprun {

/// What hosts are compared by, and what is only shown.
enum class FactKind { kCompared, kShown };

struct Fact {
  std::string name, value;
  FactKind kind = FactKind::kCompared;

  bool operator==(const Fact&) const = default;
};

/// One node, in its own words. The names of its facts are those of every other node that has the same fsdprun.
struct HostFacts {
  std::string host;
  std::vector<Fact> facts;

  bool operator==(const HostFacts&) const = default;
};

/// A fact that nodes do not have alike.
struct Difference {
  std::string name;
  /// By node.
  std::vector<std::string> values;
  /// The nodes that have another value than most; all of them if no value is that of more than half.
  std::vector<int> odd_nodes;
};

/// What ranks measured.
struct Measurement {
  /// "inside node0's host", "between hosts".
  std::string where;
  int ranks = 0;
  double latency_microseconds = 0;
  /// Of the bytes that each rank sends in an all-reduce of large tensors.
  double megabytes_per_second = 0;
};

struct Diagnosis {
  std::vector<HostFacts> nodes;
  std::vector<Measurement> measurements;
  /// Why ranks could not measure; empty: they could.
  std::string error = {};
};

std::vector<Difference> differences(const std::vector<HostFacts>& nodes);
/// "ulimit -n: 1024 on node 1 (b), 4096 on the others"
std::string describe(const Difference& difference, const std::vector<HostFacts>& nodes);

/// A table with a column for each node, and the differences below it.
std::string table(const std::vector<HostFacts>& nodes);
std::string table(const std::vector<Measurement>& measurements);
/// {"nodes": [...], "differences": [...], "measurements": [...], "error": "", "ok": ...}
std::string json(const Diagnosis& diagnosis);

std::string encode(const HostFacts& facts);
std::string encode(const std::vector<HostFacts>& nodes);
/// Throw std::exception for anything else.
HostFacts decode_host(const std::string& text);
std::vector<HostFacts> decode_hosts(const std::string& text);

}  // namespace fsdprun
