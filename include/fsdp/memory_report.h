#pragma once
/// \file
/// Report of the bytes that a rank holds for a model.

#include <fsdp/group.h>

#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

namespace torch::optim {
class Optimizer;
}

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup memory
/// \{

/// Number of bytes that a rank holds for a model, by class: now, and the peak since Group::reset_peak_stats().
/// docs/memory.md explains the classes.
struct MemoryReport {
  /// One group.
  struct OfGroup {
    std::string name;  ///< name of the group, see Group::name()
    /// Bytes of the group. RecordActivations says which activations belong to a group; an activation checkpoint counts
    /// for the first group that it reads.
    ByteCounts bytes;
  };

  int rank = 0;        ///< this rank's number in the model's process group
  int world_size = 1;  ///< number of ranks of that process group
  /// Bytes of all groups of this rank and process group. Each peak is the peak of the sum over groups, so it is at most
  /// the sum of the groups' peaks.
  ByteCounts all;
  /// Groups under the model, in the order of the module tree.
  std::vector<OfGroup> groups;

  /// Returns a JSON object: {"rank": 0, "world_size": 2, "all": {"rows": {"current": 4096, "peak": 4096}, ...},
  /// "groups": [{"name": "blocks.0", "rows": ...}, ...]}
  std::string to_json() const;
};

/// Returns the byte counts of the model's groups. Not collective. Any thread may call this function.
///
///     std::cout << fsdp::memory_report(model, optimizer);
MemoryReport memory_report(const Group& model);
/// Returns the byte counts as the function above does, and adds the state of an optimizer of torch::optim to the class
/// `optimizer`. Call it between steps. Only the current bytes of that state are known, so they count as its peak. Both
/// functions count the state of fsdp::optim's optimizers.
MemoryReport memory_report(const Group& model, const torch::optim::Optimizer& optimizer);

/// Prints a table of "now / peak" with one line for all groups and one for each group, and with a column for each class
/// that has bytes.
std::ostream& operator<<(std::ostream& out, const MemoryReport& report);

/// Guard that counts activations: while it lives, the class `activation` counts all memory that forward holds. That is
/// memory that this thread allocates outside backward, or that its backwards allocate while they recompute a
/// checkpointed forward, until it is freed. It includes the tensors that autograd saves, temporaries of operators,
/// results, and inputs that the program makes while the guard lives. Make batches before the guard and step the
/// optimizer after it, so that they do not count. Memory that the library allocates for itself does not count.
///
/// Reports by group and timelines attribute an allocation to the group of the parameter that forward, or its
/// recomputation, read last. What a block computes after it has read its first parameter therefore counts for the
/// block's group. Allocations before the first read of a scope or a backward count only in the line for all groups.
///
/// The guard watches LibTorch's allocators, on the CPU and on accelerators. It takes the place of the thread's torch
/// profiler, which records no memory while the guard lives. On the CPU LibTorch warns once if memory that was allocated
/// before is freed while the guard lives. A thread can have at most one guard; destroy it on the thread that made it.
/// When the guard is destroyed, `activation.current` returns to 0, and the peak stays. Not collective.
///
///     torch::Tensor loss;
///     {
///       const fsdp::RecordActivations recording(model);
///       loss = lm_loss(model(ids), targets);
///       loss.backward();
///     }
///     std::cout << fsdp::memory_report(model, optimizer);
class [[nodiscard]] RecordActivations {
 public:
  /// Starts recording for the statistics of `model`.
  explicit RecordActivations(const Group& model);
  ~RecordActivations();
  RecordActivations(const RecordActivations&) = delete;
  RecordActivations& operator=(const RecordActivations&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
