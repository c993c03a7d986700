#pragma once
/// \file
/// Ranks of a job of any size, one at a time in this process: each runs the library without its peers.

#include <fsdp/process_group.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "virtual_communicator.h"

namespace bench {

/// What a job is like.
struct Job {
  int ranks = 1;
  /// Ranks of one host, which follow each other.
  int ranks_per_host = 8;
  /// "device": collectives of a device's backend; "gloo", "hierarchical", "shm".
  std::string transport = "device";
};

/// What a rank did beside what its process group counts.
struct Counters {
  /// Of the store, until the ranks knew each other.
  int64_t joining_calls = 0;
  std::shared_ptr<Issued> issued = std::make_shared<Issued>();
};

/// Joins as the rank that a launcher has made of this process. Collective.
std::shared_ptr<fsdp::ProcessGroup> join_counted(const Job& job, const std::shared_ptr<Counters>& counters);

/// Starts ranks of a job. Each joins by itself, for the store has what other ranks would write of themselves.
class VirtualRanks {
 public:
  explicit VirtualRanks(Job job);
  /// Joins as this rank; rank 0 has to come first.
  std::shared_ptr<fsdp::ProcessGroup> join(int rank, const std::shared_ptr<Counters>& counters) const;

 private:
  const Job job_;
  const c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace bench
