#pragma once
/// \file
/// Which ranks hold what of a group.

#include <fsdp/process_group.h>

#include <memory>
#include <string>
#include <utility>

#include "comm/core/check.h"

namespace fsdp::runtime {

/// The ranks of the shard axis hold rows each, those of the replicate axis the same rows. Today the first has every
/// rank of the process group and the second this one only. All that a group knows of ranks and communicators is from
/// here.
class Placement {
 public:
  explicit Placement(std::shared_ptr<ProcessGroup> ranks) : ranks_(std::move(ranks)) {}

  ProcessGroup& process_group() const { return *ranks_; }
  /// Of the shard axis: this rank's number in it, and how many there are. The layout is over these.
  int rank() const { return ranks_->rank(); }
  int world_size() const { return ranks_->world_size(); }
  /// Gathers, and what callers wait for at once; reductions have an order of their own.
  Communicator& communicator() const { return ranks_->communicator(); }
  Communicator& reductions() const { return ranks_->reductions(); }
  /// What the sum of gradients is divided by: the ranks of both axes.
  double divisor() const { return ranks_->world_size(); }

  /// "[fsdp rank 0/2] operation: "
  std::string where(const std::string& operation) const { return fsdp::where(rank(), world_size(), operation); }

 private:
  std::shared_ptr<ProcessGroup> ranks_;
};

}  // namespace fsdp::runtime
