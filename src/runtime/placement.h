#pragma once
/// \file
/// Which ranks hold what of a group.

#include <fsdp/process_group.h>

#include <memory>
#include <string>
#include <vector>

namespace fsdp::runtime {

/// In a handler: tells all ranks of some process groups what failed on this one.
void fail_all(const std::vector<const ProcessGroup*>& groups, const std::string& operation);

/// The ranks of the shard axis hold rows each, those of a replicate axis the same rows. All that a group knows of
/// ranks and communicators is from here.
class Placement {
 public:
  /// Each row lies on one of `ranks`.
  explicit Placement(const std::shared_ptr<ProcessGroup>& ranks) : Placement(ranks, ranks, Axes{}) {}
  /// The axes that this rank is on; `ranks` are all of the ranks that they lead to. An axis of one rank communicates
  /// nothing. Where there are several axes, the first placement over them is collective: see `further_steps`.
  using Axes = std::vector<std::shared_ptr<ProcessGroup>>;
  Placement(std::shared_ptr<ProcessGroup> ranks, std::shared_ptr<ProcessGroup> shard, Axes replicate);

  /// The ranks of all axes: they agree about a group, are named in errors and begin anew together.
  ProcessGroup& process_group() const { return *ranks_; }
  const std::shared_ptr<ProcessGroup>& shared_process_group() const { return ranks_; }
  /// Over these ranks rows are laid out, gathered and shared, and what is computed of all rows.
  const ProcessGroup& shard() const { return *shard_; }
  const std::shared_ptr<ProcessGroup>& shared_shard() const { return shard_; }
  /// Over these ranks the gradients of rows are summed, over one axis after the other; none if there is one replica.
  const Axes& replicate() const { return replicate_; }
  /// Communicators that carry these sums. They have orders of their own, since whichever thread finds that the sum over
  /// one axis is done begins the sum over the next.
  const std::vector<std::shared_ptr<Communicator>>& further_steps() const { return further_steps_; }
  int replicas() const;
  /// Whether every rank has all rows, and there are several: what each of them has is summed where it lies.
  bool is_replicated_only() const { return shard_->world_size() == 1 && !replicate_.empty(); }
  int replica() const;
  /// What the sum of gradients is divided by: the ranks of all axes.
  double divisor() const { return ranks_->world_size(); }
  /// Whether the same ranks hold the same rows.
  bool operator==(const Placement& other) const {
    return ranks_ == other.ranks_ && shard_ == other.shard_ && replicate_ == other.replicate_ && within == other.within;
  }

  /// Neighbours on the shard axis, among which whole values stay spread after forward; null: none. See Reshard::within.
  std::shared_ptr<ProcessGroup> within;
  /// The axes over which the model itself is split; null: it is not. The ranks of the first have parts of its
  /// parameters each, see TensorCut; those of the second have other stages, see Pipeline, which sets it.
  std::shared_ptr<ProcessGroup> tensor_axis, pipe_axis;

  /// The process groups above, each once, that of all ranks first. The ranks of each fail together, and but for those
  /// of the pipe axis, which the Pipeline starts over, they begin anew together.
  std::vector<const ProcessGroup*> process_groups() const;
  /// Tells whoever may wait for this rank; see Communicator::fail.
  void fail(const std::string& operation, const std::string& error) const;
  /// In a handler: tells the other axes, where ranks may wait for this one, that a collective on one of them failed.
  void pass_on_failure(const std::string& operation) const {
    if (const auto groups = process_groups(); groups.size() > 1) fail_all(groups, operation);
  }
  /// Calls `act`, which waits for the ranks of one axis.
  template <class Act>
  void pass_on_failure_of(const std::string& operation, const Act& act) const {
    try {
      act();
    } catch (...) {
      pass_on_failure(operation);
      throw;
    }
  }
  /// Moves on the reductions in flight; see Communicator::progress.
  void progress() const;

  /// "[fsdp rank 0/2] operation: "
  std::string where(const std::string& operation) const { return ranks_->where(operation); }

 private:
  std::shared_ptr<ProcessGroup> ranks_, shard_;
  Axes replicate_;
  std::vector<std::shared_ptr<Communicator>> further_steps_;
};

}  // namespace fsdp::runtime
