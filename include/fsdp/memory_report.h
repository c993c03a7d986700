#pragma once
/// \file
/// A report of a rank's memory.

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

/// Bytes that a rank holds for a model, by class: now, and their peak since Group::reset_peak_stats(). docs/memory.md
/// explains the classes.
struct MemoryReport {
  /// One group.
  struct OfGroup {
    std::string name;  ///< see Group::name()
    /// The group's bytes. For activations see RecordActivations; a checkpoint counts for the first group that it reads.
    ByteCounts bytes;
  };

  int rank = 0;        ///< this rank in the model's process group
  int world_size = 1;  ///< number of ranks of that process group
  /// Bytes of all groups of this rank and process group. Its peaks are peaks of the sums, at most the sums of the
  /// groups' peaks.
  ByteCounts all;
  /// The groups under the model, in the order of the module tree.
  std::vector<OfGroup> groups;

  /// A JSON object: {"rank": 0, "world_size": 2, "all": {"rows": {"current": 4096, "peak": 4096}, ...}, "groups":
  /// [{"name": "blocks.0", "rows": ...}, ...]}
  std::string to_json() const;
};

/// Reads the byte counts of the model's groups. Not collective. Any thread.
///
///     std::cout << fsdp::memory_report(model, optimizer);
MemoryReport memory_report(const Group& model);
/// Also adds the state of an optimizer of torch::optim to `optimizer`; call it between steps. Since only the current
/// bytes of that state are known, they count as its peak. The state of fsdp::optim's optimizers is counted anyway.
MemoryReport memory_report(const Group& model, const torch::optim::Optimizer& optimizer);

/// Prints a table of "now / peak": a line for all groups and one for each group, a column for each class that has
/// bytes.
std::ostream& operator<<(std::ostream& out, const MemoryReport& report);

/// While it lives, the class `activation` counts what forward holds: memory that this thread and its backwards
/// allocate, outside of backward or where a checkpoint recomputes forward, and have not yet freed. This includes what
/// autograd saves and everything else that is alive, such as temporaries of operators, results, and inputs that the
/// program makes meanwhile; so make batches before it, and step the optimizer after it. Memory that the library
/// allocates for itself does not count.
///
/// Reports by group and timelines attribute an allocation to the group whose parameters forward (or a recomputation of
/// it) read last. So a block's group has what the block computes from its first parameter on. Allocations before the
/// first read of a scope or a backward count only in the line for all groups.
///
/// It watches LibTorch's allocators, on the CPU and on accelerators, in place of a torch profiler that records memory.
/// On the CPU LibTorch warns once if memory from before is freed meanwhile. At most one on a thread; destroy it on the
/// thread that made it. Then `activation.current` returns to 0, and the peak stays. Not collective.
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
