#pragma once
/// \file
/// Runs ranks of a job of any size in this process, one after another. Each rank runs the library without its peers.

#include <fsdp/process_group.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "virtual_communicator.h"

namespace bench {

/// Describes a job.
struct Job {
  int ranks = 1;
  /// Number of ranks on a host. They have consecutive numbers.
  int ranks_per_host = 8;
  /// How data travels: "device" (collectives of a device's backend), "gloo", "hierarchical" or "shm".
  std::string transport = "device";
};

/// Counts of a rank that its process group does not have.
struct Counters {
  /// Calls to the store before the ranks knew each other.
  int64_t joining_calls = 0;
  std::shared_ptr<Issued> issued = std::make_shared<Issued>();
};

/// Joins as the rank that a launcher has started. Collective.
std::shared_ptr<fsdp::ProcessGroup> join_counted(const Job& job, const std::shared_ptr<Counters>& counters);

/// Starts ranks of a job. A rank joins without the others, because the store returns what other ranks would have
/// written.
class VirtualRanks {
 public:
  explicit VirtualRanks(Job job);
  /// Joins as `rank`. Rank 0 must join first.
  std::shared_ptr<fsdp::ProcessGroup> join(int rank, const std::shared_ptr<Counters>& counters) const;

 private:
  const Job job_;
  const c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace bench
