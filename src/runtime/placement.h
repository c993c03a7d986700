#pragma once
/// \file
/// The ranks among which a group is sharded and replicated.

#include <fsdp/process_group.h>

#include <memory>
#include <string>
#include <vector>

namespace fsdp::runtime {

/// Reports the exception that this rank has caught to all ranks of the process groups. Must be called in a catch block.
void fail_all(const std::vector<const ProcessGroup*>& groups, const std::string& operation);

/// The axes of ranks over which a group is laid out. Ranks along the shard axis have different rows; ranks along a
/// replicate axis have the same rows. A group knows ranks and communicators only from its placement.
class Placement {
 public:
  /// Makes a placement without replicas: each row lies on one of `ranks`.
  explicit Placement(const std::shared_ptr<ProcessGroup>& ranks) : Placement(ranks, ranks, Axes{}) {}
  /// Makes a placement of the axes `shard` and `replicate`. Each axis is given by the process group of this rank and
  /// the ranks along that axis; `ranks` has the ranks of all axes. An axis of one rank communicates nothing. If there
  /// are several axes, the first placement over them is collective: it makes the communicators of `further_steps`.
  using Axes = std::vector<std::shared_ptr<ProcessGroup>>;
  Placement(std::shared_ptr<ProcessGroup> ranks, std::shared_ptr<ProcessGroup> shard, Axes replicate);

  /// The ranks of all axes. They agree on a group, errors name them, and they start over together after an exception.
  ProcessGroup& process_group() const { return *ranks_; }
  const std::shared_ptr<ProcessGroup>& shared_process_group() const { return ranks_; }
  /// The ranks that divide the rows among them. They all-gather rows, reduce-scatter gradients, and compute numbers
  /// over all rows, such as norms.
  const ProcessGroup& shard() const { return *shard_; }
  const std::shared_ptr<ProcessGroup>& shared_shard() const { return shard_; }
  /// The axes over which the gradients of rows are all-reduced, one axis after the other; empty if there is one
  /// replica.
  const Axes& replicate() const { return replicate_; }
  /// The communicators of these all-reduces, one for each replicate axis. Each has a queue of its own, because the
  /// all-reduces may begin on any thread and between any other collectives: see Note [When the second step begins].
  const std::vector<std::shared_ptr<Communicator>>& further_steps() const { return further_steps_; }
  int replicas() const { return ranks_->world_size() / shard_->world_size(); }
  /// Returns true if there are several ranks and each has all rows (DDP). Gradients are then summed in place.
  bool is_replicated_only() const { return shard_->world_size() == 1 && !replicate_.empty(); }
  int replica() const;
  /// Returns the default divisor of summed gradients: the number of ranks of all axes.
  double divisor() const { return ranks_->world_size(); }
  /// Returns true if both placements give the same rows to the same ranks.
  bool operator==(const Placement& other) const {
    return ranks_ == other.ranks_ && shard_ == other.shard_ && replicate_ == other.replicate_ && within == other.within;
  }

  /// The neighbours on the shard axis that keep second shards of whole values after forward; null if there are none.
  /// See Reshard::within.
  std::shared_ptr<ProcessGroup> within;
  /// The axes over which the model itself is split, or null. Each rank of the tensor axis has a part of the model's
  /// parameters (TensorCut); each rank of the pipe axis, which Pipeline sets, has other stages.
  std::shared_ptr<ProcessGroup> tensor_axis, pipe_axis;

  /// Returns the process groups above, each once, beginning with `process_group()`. When one of their ranks fails, the
  /// failure is reported to all of them. They also start over together, except for the pipe axis, which the Pipeline
  /// starts over.
  std::vector<const ProcessGroup*> process_groups() const;
  /// Reports the failure `error` of this rank to all ranks that may wait for it; see Communicator::fail.
  void fail(const std::string& operation, const std::string& error) const;
  /// Reports a failed collective on one axis to the ranks of the other axes, which may wait for this rank. Must be
  /// called in a catch block.
  void pass_on_failure(const std::string& operation) const {
    if (const auto groups = process_groups(); groups.size() > 1) fail_all(groups, operation);
  }
  /// Calls `act`, which waits for the ranks of one axis, and passes its failure on to the other axes.
  template <class Act>
  void pass_on_failure_of(const std::string& operation, const Act& act) const {
    try {
      act();
    } catch (...) {
      pass_on_failure(operation);
      throw;
    }
  }
  /// Advances the reductions in flight; see Communicator::progress.
  void progress() const;

  /// Returns the prefix of error messages, "[fsdp rank 0/2] operation: ".
  std::string where(const std::string& operation) const { return ranks_->where(operation); }

 private:
  std::shared_ptr<ProcessGroup> ranks_, shard_;
  Axes replicate_;
  std::vector<std::shared_ptr<Communicator>> further_steps_;
};

}  // namespace fsdp::runtime
