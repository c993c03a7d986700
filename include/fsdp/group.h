#pragma once
/// \file
/// The handle of a sharded module's groups.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

namespace fsdp {

namespace runtime {
class ParamGroup;
class OpenScope;
class OpenLocalRows;
class OpenSummon;
}  // namespace runtime
struct GroupView;

/// What a rank holds, in bytes: now, and at most since `reset_peak_stats()`.
struct ByteCount {
  int64_t current = 0;
  int64_t peak = 0;
};

/// Figures of the groups under a module, on this rank.
struct GroupStats {
  int64_t groups = 0;
  int64_t parameter_numel = 0;  ///< of whole parameters
  int64_t rows_numel = 0;       ///< of this rank's rows
  int64_t gathers = 0;          ///< since the groups were made
  int64_t reductions = 0;
  int64_t intercepted_operators = 0;  ///< operators that took a sharded tensor, over all groups of this rank
  /// Over all groups of this rank and process group.
  ByteCount rows, whole, gradient;
};

/// Gradients stay local while the guard lives: they accumulate whole on each rank. Last in, first out.
class [[nodiscard]] NoSync {
 public:
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  friend class Group;
  explicit NoSync(std::vector<std::shared_ptr<runtime::ParamGroup>> groups);
  std::vector<std::shared_ptr<runtime::ParamGroup>> groups_;
  std::vector<bool> previous_;
};

/// The pending `Group::unshard()`.
class [[nodiscard]] UnshardHandle {
 public:
  /// Waits until the whole parameters are in memory. Idempotent.
  void wait();

 private:
  friend class Group;
  explicit UnshardHandle(std::shared_ptr<runtime::ParamGroup> group) : group_(std::move(group)) {}
  std::shared_ptr<runtime::ParamGroup> group_;
};

/// A cheap, shared handle of one `fully_shard` call and of the groups under its module.
///
/// `unshard`, `reshard`, prefetch lists and the divide factor act on the module's own group; what takes `recurse` and
/// scopes cover all groups under the module. Thread safety: all of it; collective where said.
class Group {
 public:
  /// Brings whole parameters to memory early; shapes change only in scopes. They stay until `reshard()` or until the rows
  /// are written. Collective.
  UnshardHandle unshard() const;
  /// Frees the whole parameters of this group.
  void reshard() const;

  /// Without it, gradients accumulate whole on each rank until a backward with it.
  void set_requires_gradient_sync(bool requires_sync, bool recurse = true) const;
  NoSync no_sync() const;
  /// Free whole parameters after forward and gather them again in backward.
  void set_reshard_after_forward(bool reshard, bool recurse = true) const;
  /// Without it whole parameters stay until the rows are written, e.g. between micro-batches.
  void set_reshard_after_backward(bool reshard, bool recurse = true) const;
  /// Gather again in backward. Without it whole parameters stay from forward to backward.
  void set_unshard_in_backward(bool unshard) const;
  /// Reduce this group in every backward even if this rank's forward did not reach it (it contributes nothing).
  void set_reduce_scatter_unused_params(bool reduce, bool recurse = true) const;
  /// The summed gradients are multiplied by 1/factor instead of 1/world_size.
  void set_gradient_divide_factor(double factor) const;
  /// Groups to gather while this one is used, instead of the one that followed in the last pass.
  void set_modules_to_forward_prefetch(const std::vector<Group>& groups) const;
  void set_modules_to_backward_prefetch(const std::vector<Group>& groups) const;

  /// After an exception in forward or backward: forgets open backwards and gradients that were not handed out, frees whole
  /// parameters; `.grad` is as before the iteration. Call it on every rank. Not collective.
  void reset_iter_state() const;

  /// The parameters under the module, a tied one once: rows of this rank outside scopes.
  std::vector<at::Tensor> parameters() const;
  GroupStats stats() const;
  void reset_peak_stats() const;
  std::string name() const;
  int rank() const;
  int world_size() const;

  /// The groups themselves, the module's own first. For the library's own layers.
  const std::vector<std::shared_ptr<runtime::ParamGroup>>& param_groups() const;

 protected:
  explicit Group(std::shared_ptr<const GroupView> view) : view_(std::move(view)) {}

 private:
  friend Group group_from_view(std::shared_ptr<const GroupView> view);
  friend std::ostream& operator<<(std::ostream& out, const Group& group);
  std::shared_ptr<const GroupView> view_;
};

/// The module tree with its groups and this rank's shards.
std::ostream& operator<<(std::ostream& out, const Group& group);

}  // namespace fsdp
