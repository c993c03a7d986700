#pragma once
/// \file
/// Where a rank's bytes go.

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

/// What a rank holds for a model, by class: now, and at most since Group::reset_peak_stats(). docs/memory.md says what
/// each class is and how many bytes it has.
struct MemoryReport {
  /// One group.
  struct OfGroup {
    std::string name;  ///< as Group::name()
    /// Activations as RecordActivations says; what a checkpoint keeps is that of the first group it reads.
    ByteCounts bytes;
  };

  int rank = 0;        ///< this rank's number in the process group of the model
  int world_size = 1;  ///< the number of its ranks
  /// Of all groups of this rank and process group. Its peaks are those of the sums: at most the sums of the groups'.
  ByteCounts all;
  /// Under the model, in the order of the module tree.
  std::vector<OfGroup> groups;

  /// {"rank": 0, "world_size": 2, "all": {"rows": {"current": 4096, "peak": 4096}, ...}, "groups": [{"name":
  /// "blocks.0", "rows": ...}, ...]}
  std::string to_json() const;
};

/// Takes the counts of the model's groups. Not collective; any thread, between steps also with an optimizer: an
/// optimizer of torch::optim keeps its state apart, which is found by the parameters under the model and added to
/// `optimizer`. Its peak is then what it has now.
///
///     std::cout << fsdp::memory_report(model, optimizer);
MemoryReport memory_report(const Group& model);
/// The same with the state of an optimizer of torch::optim; for those of fsdp::optim, which are counted anyway, it
/// changes nothing.
MemoryReport memory_report(const Group& model, const torch::optim::Optimizer& optimizer);

/// A table: a line for all groups and one for each, with a column for each class that has any bytes, "now / peak".
std::ostream& operator<<(std::ostream& out, const MemoryReport& report);

/// While it lives, `activation` of the model's figures is what forward holds: the bytes that this thread, and the
/// backwards that it calls, allocate outside of backward, or in it where a checkpoint runs forward again, and have not
/// given back. That is what autograd saved, and whatever else is there: what an operator needs for a moment, results
/// and inputs that the program keeps. So make batches before it, and step the optimizer after it. Memory that the
/// library takes for itself is not in it, nor are parameters, which were there before.
///
/// In reports by group, and in timelines, it is that of the group whose parameters were read last when it was
/// allocated, in forward or where a checkpoint runs it again: of the group of a block what the block computes from its
/// first parameter on. Only the first line has what is allocated before the first read of a scope or a backward.
///
/// LibTorch's allocators are watched, on the CPU and on accelerators. On the CPU LibTorch warns once of memory from
/// before that is given back meanwhile. It takes the place of a torch profiler that counts memory. One at a time on a
/// thread. Not collective. It goes on the thread that made it; then `activation.current` is 0 again, and the peak
/// stays.
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
  /// Begins to record for the figures of `model`.
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
