#pragma once
/// \file
/// Which ranks hold what of a group.

#include <fsdp/process_group.h>

#include <memory>
#include <string>
#include <vector>

namespace fsdp::runtime {

/// The ranks of the shard axis hold rows each, those of the replicate axis the same rows. All that a group knows of
/// ranks and communicators is from here.
class Placement {
 public:
  /// Each row lies on one of `ranks`.
  explicit Placement(const std::shared_ptr<ProcessGroup>& ranks) : Placement(ranks, ranks, nullptr) {}
  /// The two axes that this rank is on; `ranks` are all of the ranks that they lead to. `replicate` may be null: one
  /// replica. An axis of one rank communicates nothing.
  Placement(std::shared_ptr<ProcessGroup> ranks, std::shared_ptr<ProcessGroup> shard,
            std::shared_ptr<ProcessGroup> replicate);

  /// The ranks of both axes: they agree about a group, are named in errors and begin anew together.
  ProcessGroup& process_group() const { return *ranks_; }
  /// Over these ranks rows are laid out, gathered and shared, and what is computed of all rows.
  const ProcessGroup& shard() const { return *shard_; }
  /// Over these ranks the gradients of rows are summed; null if there is one replica.
  const std::shared_ptr<ProcessGroup>& replicate() const { return replicate_; }
  int replicas() const { return replicate_ ? replicate_->world_size() : 1; }
  /// What the sum of gradients is divided by: the ranks of both axes.
  double divisor() const { return ranks_->world_size(); }
  bool operator==(const Placement& other) const = default;

  /// The process groups above, each once, that of all ranks first. The ranks of each fail and begin anew together.
  std::vector<const ProcessGroup*> process_groups() const;
  /// Tells whoever may wait for this rank; see Communicator::fail.
  void fail(const std::string& operation, const std::string& error) const;
  /// Moves on the reductions in flight; see Communicator::progress.
  void progress() const;

  /// "[fsdp rank 0/2] operation: "
  std::string where(const std::string& operation) const { return ranks_->where(operation); }

 private:
  std::shared_ptr<ProcessGroup> ranks_, shard_, replicate_;
};

}  // namespace fsdp::runtime
